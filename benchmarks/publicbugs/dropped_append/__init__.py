"""pytorch/pytorch#197896."""
