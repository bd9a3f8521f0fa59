"""pytorch#184893."""
