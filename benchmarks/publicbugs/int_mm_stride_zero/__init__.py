"""pytorch#195066."""
