"""The text of an FX graph, for people to read."""

from __future__ import annotations

from torch import fx


def graph_text(graph: fx.GraphModule, *, strides: bool = False) -> str:
    """The code of `graph` with the dtypes and shapes of its values, and with their `strides`.

    Torch has no abbreviation for some dtypes, such as uint4, and raises: the text is then the code
    alone, and says why.
    """
    try:
        return graph.print_readable(print_output=False, include_stride=strides)
    except Exception as error:
        return f"# without dtypes and shapes, since torch raised {error!r}\n{graph.code}"
