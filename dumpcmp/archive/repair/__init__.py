"""Checking an archive, and mending what a crash left."""
