"""pytorch/pytorch#115607."""
