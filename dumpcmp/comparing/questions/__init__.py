"""Compare on three questions, while it is built beside what it replaces."""
