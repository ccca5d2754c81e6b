"""What traces are made of: profiles, call records, dumps and snapshots, each with its reader."""
