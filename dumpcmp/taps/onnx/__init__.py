"""Exported programs that ONNX Runtime runs: the graph that it really uses, and its values."""
