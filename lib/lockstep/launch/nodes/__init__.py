"""Nodes run ranks: this host, or other hosts by an agent on each."""
