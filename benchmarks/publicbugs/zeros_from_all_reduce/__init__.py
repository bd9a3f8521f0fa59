"""pytorch/pytorch#84803."""
