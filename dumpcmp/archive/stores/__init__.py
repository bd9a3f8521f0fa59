"""Archives that lie in object stores: URLs as paths, ranges of bytes, what is kept of them here."""
