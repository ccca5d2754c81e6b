"""nbformat and nbclient, imported without a second's work for something that nobody here uses.

Both import jsonschema, and that a grammar of addresses (RFC 3987) if it is installed: only schemas
with "iri" in them need it, and to build it takes longer than all else that is imported here.
"""

from __future__ import annotations

import sys

_GRAMMAR = "rfc3987_syntax"

_absent = _GRAMMAR not in sys.modules
if _absent:
    sys.modules[_GRAMMAR] = None  # type: ignore[assignment]  # an import of it raises ImportError
try:
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError
finally:
    if _absent:
        del sys.modules[_GRAMMAR]

__all__ = ["CellExecutionError", "NotebookClient", "nbformat"]
