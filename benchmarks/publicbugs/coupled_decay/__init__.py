"""keras-team/keras#19051."""
