"""pytorch/pytorch#184893."""
