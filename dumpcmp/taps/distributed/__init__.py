"""Ranks: where this process stands, how its values lie over the mesh, what collectives move."""
