"""pytorch#198101."""
