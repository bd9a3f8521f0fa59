"""Keeps the text of a graph after each of Inductor's passes that changed it."""

from __future__ import annotations

import base64
import json
import lzma
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import fx

from dumpcmp.pytorch.graph_text import graph_text
from dumpcmp.pytorch.names import Patch, standing_in

_MOST_BYTES = 64 << 20  # of the texts of one graph; what comes after is named, without its text
_Shape = list[object]  # the nodes of a graph and what each is made of, which passes put in anew


class _Glance(NamedTuple):
    """A graph as it was when a pass last began or ended."""

    shape: _Shape
    text: str


class PassTexts:
    """The texts of one graph on its way through Inductor's passes, in their order.

    Passes before the backward graph is cut off belong to forward and backward alike.
    """

    def __init__(self, known: Mapping[str, str]) -> None:
        self._known = known  # texts of the graph that are kept as its stages
        self._shared: list[tuple[str, str]] = []
        self._own: list[tuple[str, str]] = []
        self._seen: WeakKeyDictionary[fx.GraphModule, _Glance] = WeakKeyDictionary()
        self._nbytes = 0

    def around(self, module: fx.GraphModule, name: str, run: Callable[[], Any]) -> Any:
        """Run the pass called `name`. What has no name and came before it is kept as that."""
        self._look(module, f"before-{name}")
        result = run()
        self._look(module, name)
        return result

    def _look(self, module: fx.GraphModule, name: str) -> None:
        shape, seen = list(_shape_of(module.graph)), self._seen.get(module)
        if seen is not None and _is_same(shape, seen.shape):
            return
        text = graph_text(module)
        self._seen[module] = _Glance(shape, text)
        if text != seen.text if seen else text not in self._known.values():
            self._keep(name, text)

    def _keep(self, name: str, text: str) -> None:
        self._nbytes += len(text)
        if self._nbytes > _MOST_BYTES:
            text = f"# not kept: the texts of this graph take more than {_MOST_BYTES} bytes\n"
        self._own.append((name, text))

    def cut(self) -> None:
        """What was seen so far belongs to the code of forward and backward."""
        self._shared += self._own
        self._own = []

    def taken(self) -> str:
        """All that the code now written has gone through, packed."""
        found, self._own = [*self._shared, *self._own], []
        return packed(found)


def packed(texts: list[tuple[str, str]]) -> str:
    """`texts`, which have most of their lines in common, as one short word."""
    return base64.b85encode(lzma.compress(json.dumps(texts).encode(), preset=1)).decode()


def unpacked(word: str) -> Iterator[tuple[str, str]]:
    """The names and texts that `packed` made `word` of; each name with its place before it."""
    texts = json.loads(lzma.decompress(base64.b85decode(word))) if word else []
    for number, (name, text) in enumerate(texts):
        yield f"{number:03}-{name}", text


def observers(now: Callable[[], PassTexts | None]) -> Iterator[Patch]:
    """What has each pass of Inductor tell of the graph before and after it."""

    def observed(original: Callable[..., Any], observer: Any, run: Callable[..., Any]) -> Any:
        texts = now()
        if texts is None:
            return original(observer, run)
        stage = f"{observer.subsystem}." if observer.subsystem else ""
        name = f"{stage}{observer.passname}"
        return texts.around(observer.gm, name, lambda: original(observer, run))

    observer = "torch.fx.passes.graph_transform_observer:GraphTransformObserver"
    for method in ("apply_gm_pass", "apply_graph_pass"):
        yield standing_in(f"{observer}.{method}", observed)


def _shape_of(graph: fx.Graph) -> Iterator[object]:
    for node in graph.nodes:
        yield from (node, node.target, node.args, node.kwargs)


def _is_same(one: _Shape, other: _Shape) -> bool:
    """Whether nothing was put in anew: equal symbols are not looked at, which would guard them."""
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
