"""For authors of the course: notebooks are built from their sources, checked by rules, and run."""
