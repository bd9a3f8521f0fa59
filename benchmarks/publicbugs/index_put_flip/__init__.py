"""pytorch#198270."""
