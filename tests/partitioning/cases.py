"""Configurations of ops, as tables: the examples of nnScaler, small and large, and wrong ones."""

from typing import Any

from dumpcmp.partitioning import IRObject, PartitionConfig, TensorInfo

EMBEDDING = "nnscaler.runtime.function.embedding"
FULLSLICE = "nnscaler.runtime.function.fullslice"
BATCHNORM = "nnscaler.graph.function.wrapnn.wrap_batchnorm2d_func"
INSTANCENORM = "nnscaler.graph.function.wrapnn.wrap_instancenorm2d_func"


def config(fsig: str, *shapes: Any, options: Any = (), **rest: Any) -> PartitionConfig:
    """A configuration; tuples are shapes, `options` are (idx, dim) pairs or whole dicts."""
    named = {key: rest.pop(key) for key in ("anno", "non_grad_indices") if key in rest}
    imports = rest.pop("imports", "")
    args = [TensorInfo("shape", s) if isinstance(s, tuple) else s for s in shapes]
    asked = [o if isinstance(o, dict) else {"idx": o[0], "dim": o[1]} for o in options]
    return PartitionConfig(
        fsig=fsig,
        args=args,
        kwargs=rest,
        noutputs=1,
        parti_options=asked,
        import_customized_func=imports,
        **named,
    )


def _conv(fsig: str, image: Any, weight: Any, *bias: Any, dim: int, groups: int) -> PartitionConfig:
    more = {"output_padding": 0} if "transpose" in fsig else {}
    return config(
        f"torch.{fsig}",
        image,
        weight,
        *bias,
        options=[(0, dim)],
        imports=f"from torch.nn.functional import {fsig}",
        stride=1,
        padding=0,
        dilation=1,
        groups=groups,
        **more,
    )


def _size(value: int) -> IRObject:
    return IRObject(f"size_{value}", value=value, is_constant=True)


FULL = TensorInfo("value", value=slice(None, None, None))

# The configurations that fit any machine, by a short name.
SMALL = {
    "conv2d 3-D g2": _conv("conv2d", (8, 32, 32), (16, 4, 3, 3), (16,), dim=0, groups=2),
    "conv2d 4-D g2": _conv("conv2d", (4, 8, 32, 32), (16, 4, 3, 3), (16,), dim=1, groups=2),
    "dropout 4-D": config(
        "torch.nn.functional.dropout",
        (1, 512, 4, 4),
        options=[(0, 1), (0, 2), (0, 3)],
        imports="from torch.nn.functional import dropout",
        p=0.5,
        training=False,
        inplace=False,
    ),
    "where": config("torch.where", (1, 1, 9, 9), (1, 12, 9, 9), (1,), options=[(1, 1)]),
    "view": config("torch.Tensor.view", (1, 9, 768), options=[(0, 2)], size=(-1, 768)),
    "dropout 3-D": config(
        "torch.nn.functional.dropout",
        (1, 9, 768),
        options=[(0, 2)],
        p=0.1,
        training=False,
        inplace=False,
    ),
    "fullslice": config(
        FULLSLICE,
        (1, 1, 1024, 1024),
        FULL,
        FULL,
        TensorInfo("value", value=slice(_size(0), _size(9), None)),
        TensorInfo("value", value=slice(None, _size(9), None)),
    ),
    "conv_transpose2d 3-D g1": _conv(
        "conv_transpose2d", (512, 4, 4), (512, 512, 3, 3), dim=0, groups=1
    ),
    "conv_transpose2d 4-D g1": _conv(
        "conv_transpose2d", (1, 512, 4, 4), (512, 512, 3, 3), dim=1, groups=1
    ),
    "conv1d g1": _conv("conv1d", (1, 512, 400), (128, 512, 3), dim=1, groups=1),
    "conv1d g16": _conv("conv1d", (1, 8192, 400), (128, 512, 3), dim=1, groups=16),
    "conv_transpose1d g8": _conv("conv_transpose1d", (1, 512, 100), (512, 256, 3), dim=1, groups=8),
    "conv_transpose1d g1": _conv("conv_transpose1d", (1, 512, 100), (512, 256, 3), dim=1, groups=1),
    "batchnorm2d": config(
        BATCHNORM,
        (32, 64, 8, 8),
        (64,),
        (64,),
        (64,),
        (64,),
        (1,),
        options=[(0, 0), (0, 1)],
        non_grad_indices=[3, 4, 5],
        momentum=0.1,
        training=True,
        track_running_stats=True,
        eps=1e-05,
    ),
    "addmm": config(
        "torch.addmm",
        (2, 3),
        (2, 3),
        (3, 3),
        options=[(0, 0), (1, 0)],
        imports="from torch import addmm",
    ),
    "instancenorm2d": config(
        INSTANCENORM,
        (32, 64, 8, 8),
        (64,),
        (64,),
        (64,),
        (64,),
        options=[(0, 0)],
        non_grad_indices=[3, 4],
        training=True,
        momentum=0.1,
        eps=1e-05,
    ),
}

# Those with many weights. One convolution has all of its 150 MB; the others and the table, which
# take as long and show nothing more at that size, have a quarter of the channels.
LARGE = {
    "embedding": config(
        EMBEDDING, (1, 9), (50257, 192), options=[(1, 1)], padding_idx=None, start=0, stop=50257
    ),
    "conv2d 3-D g16": _conv("conv2d", (2048, 4, 4), (2048, 128, 3, 3), (2048,), dim=0, groups=16),
    "conv2d 4-D g16": _conv(
        "conv2d", (1, 8192, 4, 4), (8192, 512, 3, 3), (8192,), dim=1, groups=16
    ),
    "conv_transpose2d 3-D g16": _conv(
        "conv_transpose2d", (2048, 4, 4), (2048, 128, 3, 3), dim=0, groups=16
    ),
    "conv_transpose2d 4-D g16": _conv(
        "conv_transpose2d", (1, 2048, 4, 4), (2048, 128, 3, 3), dim=1, groups=16
    ),
}

# Partitions that are wrong, each declared legal by an annotation of its own.
WRONG = {
    "bias of a transposed conv, summed dim": config(
        "torch.conv_transpose2d",
        (2, 8, 5, 5),
        (8, 6, 3, 3),
        (6,),
        options=[(0, 1)],
        anno="n i+ 5 5, i+ o 3 3, o -> n o 7 7",
    ),
    "addmm along k": config(
        "torch.addmm", (4, 6), (4, 8), (8, 6), options=[(1, 1)], anno="a b, a k+, k+ b -> a b"
    ),
    "batch norm without synchronised statistics": config(
        BATCHNORM,
        (32, 16, 8, 8),
        (16,),
        (16,),
        (16,),
        (16,),
        (1,),
        options=[{"idx": 0, "dim": 0, "sync": False}],
        non_grad_indices=[3, 4, 5],
        training=True,
    ),
    "permuted rows": config("torch.flip", (8, 5), options=[(0, 0)], anno="n c -> n c", dims=[0]),
    "bias counted twice": config(
        "torch.nn.functional.linear",
        (4, 8),
        (6, 8),
        (6,),
        options=[(0, 1)],
        anno="n k+, m k+, m -> n m",
    ),
    "softmax along its own dim": config(
        "torch.nn.functional.softmax", (4, 8), options=[(0, 1)], anno="n c -> n c", dim=1
    ),
    "layer norm along the normalised dim": config(
        "torch.nn.functional.layer_norm",
        (4, 8),
        options=[(0, 1)],
        anno="n normalized_shape -> n normalized_shape",
        normalized_shape=(8,),
    ),
    "running statistics of instance norm": config(
        INSTANCENORM,
        (8, 16, 4, 4),
        (16,),
        (16,),
        (16,),
        (16,),
        options=[{"idx": 0, "dim": 0, "sync": False}],
        non_grad_indices=[3, 4],
        training=True,
    ),
}
