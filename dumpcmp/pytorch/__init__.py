"""What dumpcmp must know of torch itself: its private names, trees of tensors, generators."""
