"""The ground that every room may use: text and units, provenance, style, paths, and what this
machine is."""
