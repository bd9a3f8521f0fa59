"""pytorch#198033."""
