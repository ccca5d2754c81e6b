"""What runs in the ranks' own processes, and in the one that starts them."""
