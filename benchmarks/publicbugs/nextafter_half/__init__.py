"""pytorch#187340."""
