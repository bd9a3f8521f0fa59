"""https://stackoverflow.com/questions/60335387."""
