"""What the labs show: pictures, tables, charts, grids of ranks, who holds what."""
