"""The exercises of each lab, one module a lab; importing this package registers them."""

from importlib import import_module

from ..syllabus import LABS

for _lab in LABS:
    import_module(f"{__name__}.lab{_lab.number}")
