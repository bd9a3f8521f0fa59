"""An outcome, shown to a reader."""
