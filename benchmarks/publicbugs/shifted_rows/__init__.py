"""pytorch#197829."""
