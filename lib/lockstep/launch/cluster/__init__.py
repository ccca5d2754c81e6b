"""Hosts that a queue gives: Slurm starts an agent on each, and says what becomes of them."""
