"""pytorch#191499."""
