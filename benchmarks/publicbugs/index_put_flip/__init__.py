"""pytorch/pytorch#198270."""
