"""marin-community/levanter#883."""
