"""pytorch/pytorch#179804."""
