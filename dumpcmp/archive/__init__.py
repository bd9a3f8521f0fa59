"""The tensor archive: standard HDF5 parts, written append-only, read lazily."""
