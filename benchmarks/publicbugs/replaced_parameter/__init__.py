"""pytorch/pytorch#104336."""
