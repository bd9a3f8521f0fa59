"""The ways to watch a program: modules, functions, aten ops, FX graphs, boundaries of graphs."""
