"""A package that is run as a program."""
