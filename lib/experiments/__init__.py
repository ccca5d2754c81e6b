"""Experiments, which make the recordings below `data/`: `python -m experiments NAME`.

Each experiment is a module of its own. `experiment.py` says what one is, `manifest.py` what is
noted down beside its results and how both are written, `command.py` which experiments there are.
"""
