"""The user's package of the pages."""
