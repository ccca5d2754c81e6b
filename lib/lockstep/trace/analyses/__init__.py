"""Questions about a trace, each in a module of its own. They know its slices and the joins only."""
