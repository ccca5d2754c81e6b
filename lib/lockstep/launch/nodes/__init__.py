"""Where ranks run: this host, or other hosts by an agent on each."""
