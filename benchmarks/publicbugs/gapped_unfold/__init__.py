"""pytorch#198102."""
