"""Annotations of ops, as functions of their arguments; one file per family of ops."""
