"""pytorch/pytorch#197895."""
