"""Recording: names, numbers and copies what any tap sees."""
