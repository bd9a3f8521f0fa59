"""What ops of ONNX and ONNX Runtime compute, by the definitions in their schemas, in torch."""

from dumpcmp.replay.onnx_ops import (
    attending,
    elementwise,
    integer_codes,
    moving,
    normalising,
    pooling,
    products,
    quantised_layers,
    recurrent,
    reducing,
)
from dumpcmp.replay.onnx_ops.op_table import OnnxOp, named

__all__ = [
    "OnnxOp",
    "attending",
    "elementwise",
    "integer_codes",
    "moving",
    "named",
    "normalising",
    "pooling",
    "products",
    "quantised_layers",
    "recurrent",
    "reducing",
]  # fmt: skip
