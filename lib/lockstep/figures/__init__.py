"""Figures of the labs: pictures, tables, charts, grids of ranks, who holds what."""
