"""What the table says of an op is what ONNX Runtime computes for it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from dumpcmp.replay.arguments import CallArguments
from dumpcmp.replay.listed import function_named
from dumpcmp.replay.rating import run
from dumpcmp.replay.running import is_exact, run_exactly, widened

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

MS = "com.microsoft"
_DRAWS = torch.Generator().manual_seed(0)


def floats(*shape: int) -> Tensor:
    return torch.randn(shape, generator=_DRAWS)


def ints(*numbers: int) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def codes(*shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    low = 0 if dtype == torch.uint8 else -127
    return torch.randint(low, low + 255, shape, generator=_DRAWS).to(dtype)


class Node(NamedTuple):
    op: str
    inputs: tuple[Tensor | None, ...]
    attributes: dict[str, Any] = {}  # noqa: RUF012 - nobody writes to it
    domain: str = ""
    opset: int = 21
    num_outputs: int = 1

    def __str__(self) -> str:
        told = ",".join(f"{name}={value}" for name, value in self.attributes.items())
        return f"{self.op}({told})@{self.opset}"


X = floats(2, 3, 8, 8)
S = floats(2, 5, 8)
_SCALE, _ZERO = torch.tensor(0.05), torch.tensor(120, dtype=torch.uint8)

_UNARY = """
    Abs Neg Ceil Floor Sign Exp Reciprocal Sin Cos Tan Atan Sinh Cosh Tanh Asinh Erf Sigmoid Round
    Relu HardSwish Softsign LeakyRelu Elu Celu Selu HardSigmoid Softplus ThresholdedRelu Shrink
    Identity Softmax LogSoftmax Hardmax IsNaN IsInf Mish
"""
_REDUCTIONS = "Sum Mean Max Min Prod L1 L2 LogSum LogSumExp SumSquare"

NODES = [
    *(
        Node(op, (floats(3, 7),))
        for op in _UNARY.split()
    ),
    *(Node(op, (floats(3, 7).abs() + 0.1,)) for op in ("Log", "Sqrt")),
    *(Node(op, (floats(3, 7).clamp(-0.9, 0.9),)) for op in ("Asin", "Acos", "Atanh")),
    Node("Acosh", (floats(3, 7).abs() + 1.1,)),
    Node("Gelu", (floats(3, 7),)),
    Node("Gelu", (floats(3, 7),), {"approximate": "tanh"}),
    Node("Gelu", (floats(3, 7),), domain=MS),
    Node("FastGelu", (floats(3, 7), floats(7)), domain=MS),
    Node("QuickGelu", (floats(3, 7),), {"alpha": 1.5}, domain=MS),
    Node("BiasGelu", (floats(3, 7), floats(7)), domain=MS),
    *(
        Node(op, (floats(3, 7), floats(7)))
        for op in ("Add", "Sub", "Mul", "Div", "Less", "Greater")
    ),
    *(Node(op, (floats(3, 7), floats(7), floats(3, 1))) for op in ("Max", "Min", "Sum", "Mean")),
    Node("Pow", (floats(3, 7).abs(), floats(7))),
    Node("PRelu", (floats(3, 7), floats(7))),
    Node("Div", (ints(-7, 7, 8), ints(2, -2, 3))),
    Node("Mod", (ints(-7, 7, 8), ints(2, -2, 3))),
    Node("Mod", (floats(5), floats(5)), {"fmod": 1}),
    Node("BitShift", (codes(5), torch.ones(5, dtype=torch.uint8)), {"direction": "LEFT"}),
    Node("Clip", (floats(3, 7), torch.tensor(-0.5), torch.tensor(0.5))),
    Node("Clip", (floats(3, 7), None, torch.tensor(0.5))),
    Node("Where", (floats(3, 7) > 0, floats(3, 7), floats(7))),
    Node("Cast", (floats(3, 7) * 5,), {"to": 7}),
    Node("Cast", (ints(1, 2),), {"to": 1}),
    # moves
    Node("Reshape", (S, ints(0, -1, 4))),
    Node("Reshape", (S, ints(10, 8)), {"allowzero": 1}),
    Node("Transpose", (S,), {"perm": [2, 0, 1]}),
    Node("Transpose", (S,)),
    Node("Flatten", (X,), {"axis": 2}),
    Node("Flatten", (X,), {"axis": -1}),
    Node("Squeeze", (floats(1, 3, 1), ints(0))),
    Node("Squeeze", (floats(1, 3, 1),)),
    Node("Unsqueeze", (floats(3), ints(0, -1))),
    Node("Concat", (S, S), {"axis": -1}),
    Node("Split", (S, ints(2, 3)), {"axis": 1}, num_outputs=2),
    Node("Split", (S,), {"axis": 1, "num_outputs": 2}, num_outputs=2),
    Node("Slice", (S, ints(1), ints(100), ints(1), ints(2))),
    Node("Slice", (S, ints(-1), ints(-100), ints(2), ints(-1))),
    Node("Slice", (S, ints(0, 1), ints(1, 3))),
    Node("Gather", (S, torch.tensor([[0, -1], [2, 1]])), {"axis": 1}),
    Node("GatherElements", (S, torch.randint(-8, 8, (2, 5, 3), generator=_DRAWS)), {"axis": 2}),
    Node("GatherND", (S, torch.tensor([[0, 1], [1, 4]]))),
    Node("GatherND", (S, torch.tensor([[1], [4]])), {"batch_dims": 1}),
    Node("ScatterElements", (floats(3, 4), torch.tensor([[1, -1]]), floats(1, 2)), {"axis": 1}),
    Node(
        "ScatterElements",
        (floats(3, 4), torch.tensor([[1, 1]]), floats(1, 2)),
        {"axis": 1, "reduction": "add"},
    ),
    Node("ScatterND", (floats(4, 3), torch.tensor([[0], [-1]]), floats(2, 3))),
    Node(
        "ScatterND",
        (floats(4, 3), torch.tensor([[0, 1], [0, 1]]), floats(2)),
        {"reduction": "add"},
    ),
    Node("Expand", (floats(3, 1), ints(2, 1, 4))),
    Node("Tile", (floats(2, 3), ints(2, 3))),
    Node("Pad", (S, ints(0, 1, 2, 0, 0, 3), torch.tensor(1.5))),
    Node("Pad", (S, ints(0, 1, 2, 0, 0, 3)), {"mode": "reflect"}),
    Node("Pad", (S, ints(0, 1, 2, 0, 0, 3)), {"mode": "edge"}),
    Node("Pad", (S, ints(1, -1), None, ints(2))),
    Node("Shape", (X,), {"start": 1, "end": -1}),
    Node("Size", (X,)),
    Node("ConstantOfShape", (ints(2, 3),), {"value": torch.tensor([2.5])}),
    Node("Range", (torch.tensor(1), torch.tensor(9), torch.tensor(3))),
    Node("Range", (torch.tensor(1.0), torch.tensor(2.0), torch.tensor(0.3))),
    Node("EyeLike", (floats(3, 4),), {"k": 1}),
    Node("OneHot", (torch.tensor([1, -1]), torch.tensor(4), torch.tensor([0.5, 2.0])), {"axis": 0}),
    Node("NonZero", (floats(3, 4).relu(),)),
    Node("Compress", (S, torch.tensor([True, False, True])), {"axis": 1}),
    Node("Unique", (torch.tensor([3, 1, 3, 2]),), num_outputs=4),
    Node("TopK", (S, ints(3)), {"axis": 1}, num_outputs=2),
    Node("TopK", (S, ints(2)), {"largest": 0}, num_outputs=2),
    Node("ArgMax", (S,), {"axis": 1}),
    Node("ArgMin", (S,), {"axis": -1, "keepdims": 0}),
    Node("ArgMax", (torch.ones(3, 4),), {"axis": 1, "select_last_index": 1}),
    Node("Trilu", (floats(4, 5), torch.tensor(1))),
    Node("Trilu", (floats(4, 5),), {"upper": 0}),
    Node("DepthToSpace", (floats(1, 8, 2, 3),), {"blocksize": 2}),
    Node("DepthToSpace", (floats(1, 8, 2, 3),), {"blocksize": 2, "mode": "CRD"}),
    Node("SpaceToDepth", (floats(1, 2, 4, 6),), {"blocksize": 2}),
    Node("ReverseSequence", (floats(4, 3), ints(4, 2, 1)), {"batch_axis": 1, "time_axis": 0}),
    Node("CumSum", (S, torch.tensor(1))),
    Node("CumSum", (S, torch.tensor(1)), {"exclusive": 1, "reverse": 1}),
    # reductions
    *(
        Node(f"Reduce{name}", (floats(2, 3, 4).abs() + 0.1, ints(1)), {"keepdims": 0})
        for name in _REDUCTIONS.split()
    ),
    Node("ReduceSum", (S,)),
    Node("ReduceSum", (S,), {"noop_with_empty_axes": 1}),
    Node("ReduceMean", (S,), {"axes": [1, -1]}, opset=17),
    # products
    Node("MatMul", (floats(2, 3, 4), floats(4, 5))),
    Node("Gemm", (floats(3, 4), floats(5, 4), floats(5)), {"transB": 1, "alpha": 0.5, "beta": 2.0}),
    Node("Gemm", (floats(4, 3), floats(4, 5)), {"transA": 1}),
    Node("FusedMatMul", (floats(2, 4, 3), floats(2, 5, 4)),
         {"transA": 1, "transB": 1, "alpha": 0.3}, domain=MS),
    Node("FusedMatMul", (floats(4, 2, 3), floats(2, 3, 5)), {"transBatchA": 1}, domain=MS),
    Node("FusedGemm", (floats(3, 4), floats(4, 5), floats(5)), {"activation": "Relu"}, domain=MS),
    Node("Einsum", (floats(2, 3, 4), floats(4, 5)), {"equation": "bij,jk->bik"}),
    Node("Conv", (X, floats(6, 3, 3, 3), floats(6)), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    Node("Conv", (X, floats(6, 1, 3, 3)), {"group": 3, "dilations": [2, 2]}),
    Node("Conv", (X, floats(6, 3, 3, 3)), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    Node("Conv", (floats(2, 3, 9), floats(4, 3, 3)), {"auto_pad": "SAME_LOWER"}),
    Node("ConvTranspose", (X, floats(3, 4, 3, 3), floats(4)),
         {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    Node("ConvTranspose", (floats(1, 4, 5), floats(4, 2, 3)), {"group": 2, "dilations": [2]}),
    # windows
    Node("MaxPool", (X,), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}),
    Node("MaxPool", (X,), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    Node("MaxPool", (X,), {"kernel_shape": [2, 2], "dilations": [2, 2]}),
    Node("AveragePool", (X,), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    Node("AveragePool", (X,), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1],
                               "count_include_pad": 1, "strides": [2, 2]}),
    Node("AveragePool", (X,), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    Node("GlobalAveragePool", (X,)),
    Node("GlobalMaxPool", (X,)),
    Node("LpPool", (X,), {"kernel_shape": [3, 3]}),
    *(
        Node("Resize", (X, None, torch.tensor([1.0, 1.0, 2.0, 1.5])),
             {"mode": mode, "coordinate_transformation_mode": how})
        for mode in ("nearest", "linear", "cubic")
        for how in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
        if (mode, how) != ("nearest", "align_corners")
    ),
    Node("Resize", (X, None, None, ints(2, 3, 5, 11)), {"mode": "linear"}),
    Node("Resize", (X, None, torch.tensor([1.0, 1.0, 2.0, 2.0])),
         {"mode": "nearest", "coordinate_transformation_mode": "asymmetric",
          "nearest_mode": "floor"}),
    Node("GridSample", (X, floats(2, 4, 5, 2) / 2), {"align_corners": 1}),
    Node("GridSample", (X, floats(2, 4, 5, 2) / 2), {"mode": "nearest", "padding_mode": "border"}),
    Node("GridSample", (X, floats(2, 4, 5, 2) / 2), {"mode": "bilinear"}, opset=16),
    Node("RoiAlign", (X, torch.tensor([[0.0, 0.0, 5.0, 6.0], [1.0, 2.0, 7.0, 7.5]]), ints(0, 1)),
         {"output_height": 2, "output_width": 3, "sampling_ratio": 2}),
    Node("RoiAlign", (X, torch.tensor([[0.0, 0.0, 5.0, 6.0]]), ints(1)),
         {"output_height": 2, "output_width": 2, "coordinate_transformation_mode":
          "output_half_pixel", "spatial_scale": 0.5}),
    Node("NonMaxSuppression",
         (torch.rand(1, 9, 4, generator=_DRAWS), torch.rand(1, 2, 9, generator=_DRAWS), ints(3),
          torch.tensor([0.3]), torch.tensor([0.2]))),
    # norms
    Node("BatchNormalization", (X, floats(3), floats(3), floats(3), floats(3).abs() + 0.5)),
    Node("InstanceNormalization", (X, floats(3), floats(3)), {"epsilon": 1e-3}),
    Node("LayerNormalization", (S, floats(8), floats(8)), {"epsilon": 1e-3}, num_outputs=3),
    Node("LayerNormalization", (S, floats(5, 8)), {"axis": 1}),
    Node("GroupNormalization", (floats(2, 6, 5), floats(6), floats(6)), {"num_groups": 3}),
    Node("SimplifiedLayerNormalization", (S, floats(8))),
    Node("SkipLayerNormalization", (S, floats(2, 5, 8), floats(8), floats(8)), {"epsilon": 1e-3},
         domain=MS),
    Node("SkipLayerNormalization", (S, floats(2, 5, 8), floats(8), None, floats(8)), domain=MS),
    Node("SkipSimplifiedLayerNormalization", (S, floats(2, 5, 8), floats(8)), domain=MS),
    Node("MeanVarianceNormalization", (X,)),
    Node("LpNormalization", (S,), {"p": 1}),
    Node("LRN", (X,), {"size": 3, "alpha": 0.5}),
    # attention
    Node("Attention", (floats(2, 4, 5, 8), floats(2, 2, 6, 8), floats(2, 2, 6, 8)), opset=23),
    Node("Attention", (floats(2, 4, 6, 8), floats(2, 4, 6, 8), floats(2, 4, 6, 8)),
         {"is_causal": 1, "scale": 0.3}, opset=23),
    Node("MultiHeadAttention", (S, S, S, floats(24)), {"num_heads": 2}, domain=MS),
    Node("Attention", (S, floats(8, 24), floats(24)), {"num_heads": 2}, domain=MS),
    Node("RotaryEmbedding", (floats(2, 4, 5, 8), floats(2, 5, 4), floats(2, 5, 4)), opset=23),
    Node("RotaryEmbedding", (floats(2, 5, 16), torch.arange(5).repeat(2, 1), floats(9, 4),
                             floats(9, 4)), domain=MS),
    # integers
    Node("QuantizeLinear", (S, _SCALE, _ZERO)),
    Node("QuantizeLinear", (S, floats(5).abs() / 20, torch.zeros(5, dtype=torch.int8)),
         {"axis": 1}),
    Node("DequantizeLinear", (codes(2, 5, 8), _SCALE, _ZERO)),
    Node("DynamicQuantizeLinear", (S,), num_outputs=3),
    Node("MatMulInteger", (codes(3, 4), codes(4, 5, dtype=torch.int8), _ZERO,
                           torch.tensor(0, dtype=torch.int8))),
    Node("ConvInteger", (codes(1, 3, 6, 6), codes(4, 3, 3, 3), _ZERO, _ZERO)),
    Node("DynamicQuantizeMatMul",
         (floats(3, 16), codes(16, 5, dtype=torch.int8), torch.tensor(0.02),
          torch.tensor(0, dtype=torch.int8)), domain=MS),
    Node("MatMulIntegerToFloat",
         (codes(3, 16), codes(16, 5, dtype=torch.int8), _SCALE, torch.tensor(0.02), _ZERO,
          torch.tensor(0, dtype=torch.int8), floats(5)), domain=MS),
    Node("QLinearMatMul", (codes(3, 16), _SCALE, _ZERO, codes(16, 5), _SCALE, _ZERO, _SCALE * 20,
                           _ZERO)),
    Node("QLinearConv", (codes(1, 3, 6, 6), _SCALE, _ZERO, codes(4, 3, 3, 3), _SCALE, _ZERO,
                         _SCALE * 20, _ZERO)),
    Node("QLinearAdd", (codes(3, 4), _SCALE, _ZERO, codes(3, 4), _SCALE, _ZERO, _SCALE, _ZERO),
         domain=MS),
    # recurrent
    *(
        Node(op, (floats(5, 2, 3), floats(d, n * 4, 3), floats(d, n * 4, 4), floats(d, n * 8)),
             {"hidden_size": 4, "direction": direction, **told}, num_outputs=2)
        for op, n, told in (("LSTM", 4, {}), ("GRU", 3, {}), ("RNN", 1, {}),
                            ("GRU", 3, {"linear_before_reset": 1}))
        for direction, d in (("forward", 1), ("bidirectional", 2))
    ),
    Node("DFT", (floats(2, 8, 1), None, torch.tensor(1)), {"onesided": 1}, opset=20),
    Node("STFT", (floats(1, 32, 1), torch.tensor(4), floats(8))),
    Node("HannWindow", (torch.tensor(10),)),
    # since opset 24
    Node("CumProd", (floats(2, 5), torch.tensor(1)), opset=26),
    Node("CumProd", (floats(2, 5), torch.tensor(1)), {"exclusive": 1, "reverse": 1}, opset=26),
    Node("TensorScatter", (floats(2, 3, 7, 4), floats(2, 3, 2, 4), ints(1, 4)), opset=24),
    Node("TensorScatter", (floats(2, 3, 7, 4), floats(2, 3, 4, 4), ints(1, 5)),
         {"mode": "circular"}, opset=24),
    # integers
    Node("Resize", (codes(1, 3, 9, 7), None, torch.tensor([1.0, 1.0, 2.0, 2.0])),
         {"mode": "linear"}),
    Node("QLinearMul", (codes(9, 99), _SCALE, _ZERO, codes(9, 99), _SCALE, _ZERO,
                        torch.tensor(0.0837), torch.tensor(7, dtype=torch.uint8)), domain=MS),
    Node("QLinearSoftmax", (codes(9, 24), torch.tensor(0.0123), _ZERO, torch.tensor(0.0041),
                            torch.tensor(0, dtype=torch.uint8)), {"opset": 13}, domain=MS),
    Node("QLinearMatMul", (codes(9, 16), _SCALE, _ZERO, codes(16, 24, dtype=torch.int8),
                           floats(24).abs() / 20, torch.zeros(24, dtype=torch.int8), _SCALE * 9,
                           _ZERO)),
    # layers of integers
    Node("QLinearSoftmax", (codes(3, 16), _SCALE, _ZERO, torch.tensor(1 / 256),
                            torch.tensor(0, dtype=torch.uint8)), {"opset": 13}, domain=MS),
    Node("QLinearWhere", (floats(3, 4) > 0, codes(3, 4), _SCALE, _ZERO, codes(3, 4), _SCALE * 2,
                          _ZERO, _SCALE * 3, _ZERO), domain=MS),
    Node("QLinearAveragePool", (codes(1, 3, 8, 8), _SCALE, _ZERO, _SCALE, _ZERO),
         {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, domain=MS),
    Node("NhwcMaxPool", (codes(1, 8, 8, 3),), {"kernel_shape": [3, 3], "strides": [2, 2]},
         domain=MS),
    Node("QAttention", (codes(2, 5, 8), codes(8, 24, dtype=torch.int8), floats(24), _SCALE,
                        torch.tensor(0.01), None, _ZERO, torch.tensor(0, dtype=torch.int8)),
         {"num_heads": 2}, domain=MS),
    Node("QAttention", (codes(2, 5, 8), codes(8, 24), floats(24), _SCALE, torch.tensor(0.01),
                        torch.tensor([5, 3], dtype=torch.int32), _ZERO, _ZERO),
         {"num_heads": 2}, domain=MS),
    Node("QEmbedLayerNormalization",
         (torch.randint(0, 9, (2, 5), generator=_DRAWS).int(), None, codes(9, 8), codes(6, 8),
          None, codes(8), codes(8), None, _SCALE, _SCALE, None, _SCALE, _SCALE, _ZERO, _ZERO,
          None, _ZERO, _ZERO), num_outputs=2, domain=MS),
    Node("QuantizeLinear", (floats(4, 6), floats(2, 6).abs() / 20 + 0.01,
                            codes(2, 6)), {"axis": 0, "block_size": 2}),
    Node("DequantizeLinear", (codes(4, 6), floats(2, 6).abs() / 20, codes(2, 6)),
         {"axis": 0, "block_size": 2}),
    Node("GatherBlockQuantized", (codes(7, 32), ints(3, 0, 6), floats(7, 2)),
         {"block_size": 16, "bits": 8}, domain=MS),
    Node("GatherBlockQuantized", (codes(7, 16), ints(3, 0, 6), floats(7, 2), codes(7, 1)),
         {"block_size": 16, "bits": 4}, domain=MS),
    *(
        Node("DynamicQuantizeLSTM",
             (floats(5, 1, 3), codes(d, 3, 16), codes(d, 4, 16), floats(d, 32), None, None, None,
              None, torch.full((d,), 0.01), codes(d), torch.full((d,), 0.01), codes(d)),
             {"hidden_size": 4, "direction": way}, num_outputs=3, domain=MS)
        for way, d in (("forward", 1), ("bidirectional", 2))
    ),
    *(
        Node("GroupQueryAttention",
             (floats(2, n, 64), floats(2, n, 32), floats(2, n, 32), floats(2, 2, past, 16),
              floats(2, 2, past, 16), torch.tensor([n + past - 1] * 2, dtype=torch.int32),
              torch.tensor([n + past], dtype=torch.int32), floats(16, 8), floats(16, 8)),
             {"num_heads": 4, "kv_num_heads": 2, "do_rotary": turns, "local_window_size": window},
             num_outputs=3, domain=MS)
        for n, past, turns, window in ((4, 0, 1, -1), (1, 5, 1, -1), (1, 5, 0, 3))
    ),
]  # fmt: skip


def ran_by_ort(node: Node) -> list[Tensor]:
    names = [f"i{at}" if given is not None else "" for at, given in enumerate(node.inputs)]
    outputs = [f"o{at}" for at in range(node.num_outputs)]
    attributes = {
        name: onnx.numpy_helper.from_array(value.numpy()) if isinstance(value, Tensor) else value
        for name, value in node.attributes.items()
    }
    made = onnx.helper.make_node(node.op, names, outputs, domain=node.domain, **attributes)
    inputs = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(given.numpy().dtype), given.shape
        )
        for name, given in zip(names, node.inputs, strict=True)
        if given is not None
    ]
    graph = onnx.helper.make_graph(
        [made], "one", inputs, [onnx.ValueInfoProto(name=name) for name in outputs]
    )
    opsets = [onnx.helper.make_opsetid("", node.opset), onnx.helper.make_opsetid(MS, 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = {
        name: given.numpy()
        for name, given in zip(names, node.inputs, strict=True)
        if given is not None
    }
    return [torch.from_numpy(each) for each in session.run(None, feeds)]


@pytest.mark.parametrize("node", NODES, ids=str)
def test_the_table_says_what_onnx_runtime_computes(node: Node) -> None:
    target = f"{node.domain or 'onnx'}::{node.op}.{1 if node.domain else node.opset}"
    function = function_named(target)
    arguments = widened(function, CallArguments(node.inputs, dict(node.attributes)), "cpu")
    made = run(function, arguments)
    for at, recorded in enumerate(ran_by_ort(node)):
        known = made[f"output.{at}"]
        assert known.shape == recorded.shape
        if recorded.is_floating_point():
            assert known.dtype in (torch.float64, recorded.dtype)
            torch.testing.assert_close(known.to(recorded.dtype), recorded, rtol=2e-5, atol=5e-6)
        else:
            assert torch.equal(known.to(recorded.dtype), recorded)


def test_codes_between_two_levels_are_those_of_onnx_runtime() -> None:
    """A call is run again on the scales as they are, in float32: ties fall as ORT's do."""
    scales = (_SCALE, _SCALE, _SCALE * 2)
    zero = torch.tensor(7, dtype=torch.uint8)
    a, b = codes(40, 256), codes(40, 256)
    inputs = (a, scales[0], _ZERO, b, scales[1], _ZERO, scales[2], zero)
    (recorded,) = ran_by_ort(Node("QLinearMul", inputs, domain=MS))
    function = function_named("com.microsoft::QLinearMul.1")
    arguments = CallArguments(inputs, {})
    assert is_exact(function, arguments)
    assert torch.equal(run_exactly(function, arguments)["output.0"], recorded)
    exact = (a.double() - 120) * (b.double() - 120) * 0.025
    assert (exact % 1 == 0.5).sum() > 100
