"""pytorch/pytorch#185382."""
