"""The code that runs in the ranks' own processes, and in the one that starts them."""
