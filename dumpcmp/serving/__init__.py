"""Use case: capture what an engine for serving runs, in each of its workers, by its plugins."""
