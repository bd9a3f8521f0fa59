"""Images whose channels lie in blocks, as convolutions of ONNX Runtime on CPUs take them: in order.

How elements lie in memory is no part of a program. A value that ORT has in blocks is recorded with
its channels in order, as any other image, and so are the weights that were laid out for it.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dumpcmp.taps.onnx.graph_nodes import OnnxNode

NCHWC = "com.microsoft.nchwc"
_BLOCKS = (16, 8, 4)


@dataclass(eq=False)
class PlainImages:
    """The values of a run, those in blocks with their channels in order."""

    values: MutableMapping[str, Tensor]
    weights: Mapping[str, Tensor] = field(default_factory=dict)  # of the model, by name
    _blocked: set[str] = field(default_factory=set)  # names

    def put_in_order(self, nodes: Sequence[OnnxNode]) -> int:
        """Put all that lies in blocks in order; how many channels a block has, 0 if unknown."""
        block = block_of_channels(nodes, self.values)
        if not block:
            return 0
        filters = {name: tensor for name, tensor in self.values.items() if tensor.ndim == 4}
        for node in nodes:
            image = node.inputs[0] if node.inputs else ""
            if node.domain == NCHWC and node.op == "Conv":
                self._lay_filter(node, filters, block, image in self._blocked)
            if _gives_blocks(node) or (node.domain != NCHWC and image in self._blocked):
                for name in filter(None, node.outputs):
                    if name in self.values and self.values[name].ndim == 4:
                        self._blocked.add(name)
        for name in self._blocked:
            self.values[name] = in_order(self.values[name], block)
        return block

    def _lay_filter(
        self, node: OnnxNode, filters: Mapping[str, Tensor], block: int, is_blocked: bool
    ) -> None:
        """Put the filter of a convolution in order; it is the model's own where it is that."""
        name = node.inputs[1]
        if name not in filters:
            return
        is_single = int(node.attributes.get("group", 1)) > 1 and filters[name].shape[1] == 1
        plain = filter_in_order(filters[name], block, is_blocked and not is_single)
        self.values[name] = next((w for w in self.weights.values() if _is(w, plain)), plain)


def _is(weight: Tensor, plain: Tensor) -> bool:
    return (
        weight.shape == plain.shape and weight.dtype == plain.dtype and torch.equal(weight, plain)
    )


def _gives_blocks(node: OnnxNode) -> bool:
    return node.domain == NCHWC and node.op != "ReorderOutput"


def in_order(image: Tensor, block: int) -> Tensor:
    """An image whose channels lie in blocks, with its channels in order."""
    n, channels, *sizes = image.shape
    laid = image.reshape(n, channels // block, *sizes, block).movedim(-1, 2)
    return laid.reshape(n, channels, *sizes)


def filter_in_order(weight: Tensor, block: int, has_both: bool) -> Tensor:
    """A filter laid out for such images; `has_both`: for those that it takes, too."""
    outward, inward, *kernel = weight.shape
    if has_both and inward % block == 0:
        whole = weight.reshape(outward // block, inward // block, *kernel, block, block)
        laid = whole.movedim((-1, -2), (1, 3))
    else:
        laid = weight.reshape(outward // block, inward, *kernel, block).movedim(-1, 1)
    return laid.reshape(outward, inward, *kernel)


def block_of_channels(nodes: Sequence[OnnxNode], values: Mapping[str, Tensor]) -> int:
    """Of how many channels the blocks are; 0: nothing tells.

    The processor decides that, and no attribute: what puts the channels in order again shows it.
    """
    left = set(_BLOCKS)
    for node in nodes:
        names = (*node.inputs[:1], *node.outputs[:1])
        if node.op != "ReorderOutput" or not all(name in values for name in names):
            continue
        blocked, plain = (values[name] for name in names)
        plain = plain.movedim(-1, 1) if node.attributes.get("channels_last") else plain
        left = {block for block in left if _is_laid(blocked, plain, block)}
        if len(left) == 1:
            break
    return max(left) if left and left != set(_BLOCKS) else 0


def _is_laid(blocked: Tensor, plain: Tensor, block: int) -> bool:
    if blocked.shape[1] % block:
        return False
    return torch.equal(in_order(blocked, block)[:, : plain.shape[1]], plain)
