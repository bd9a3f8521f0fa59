"""A backend of torch.compile."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx


def build(graph: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    """Run `graph` as it is."""
    return graph.forward
