"""The truth table: whether a comparison names the op that went wrong, and no other."""
