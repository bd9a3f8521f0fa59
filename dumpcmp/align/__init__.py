"""Which value of the target belongs to which value of golden."""
