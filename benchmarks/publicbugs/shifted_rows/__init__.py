"""pytorch/pytorch#197829."""
