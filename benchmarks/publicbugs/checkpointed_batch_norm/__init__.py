"""pytorch/pytorch#96136."""
