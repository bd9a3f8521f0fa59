"""pytorch/pytorch#175966."""
