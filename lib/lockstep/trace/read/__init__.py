"""Readers of what traces are made of: profiles, call records, dumps and snapshots."""
