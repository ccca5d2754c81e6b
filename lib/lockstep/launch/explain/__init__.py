"""What happened, for people: why ranks do not go on, and how a failure reads."""
