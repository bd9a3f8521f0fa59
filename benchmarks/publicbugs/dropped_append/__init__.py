"""pytorch#197896."""
