"""modelscope/twinkle#290."""
