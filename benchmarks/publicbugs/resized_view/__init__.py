"""pytorch#191449."""
