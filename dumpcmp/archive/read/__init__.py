"""Reading an archive: parts by their index, their journal or their groups."""
