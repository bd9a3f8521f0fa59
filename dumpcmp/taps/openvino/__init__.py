"""ONNX models in OpenVINO: the kernels that it makes of their nodes, and the values between."""
