"""Writing an archive: from Records to bytes in parts."""
