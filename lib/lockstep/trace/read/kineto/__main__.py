"""A process that reads files into the cache: see `workers`."""

import sys

from .workers import main

main(*sys.argv[1:])
