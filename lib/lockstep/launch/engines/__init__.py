"""Engines start the ranks."""
