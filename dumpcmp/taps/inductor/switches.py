"""Turns single fusions of Inductor off: patterns of its graph passes by name, or its kernels'."""

from __future__ import annotations

import inspect
import json
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from dumpcmp.nouns.errors import SelectionError
from dumpcmp.nouns.selection import closest
from dumpcmp.pytorch.names import Patch, check_names, private, standing_in

GRAPH, KERNELS, ALL = "GraphFusion", "UBFusion", "ALL"
_EXAMPLE = '{"Switch": {"GraphFusion": {"mm_plus_mm": "off"}, "UBFusion": {"ALL": "off"}}}'
_PASS = "torch._inductor.pattern_matcher:PatternMatcherPass"


@dataclass(frozen=True, slots=True)
class Switches:
    """Which fusions are off: patterns by name, or all but those that are `on`."""

    off: frozenset[str] = frozenset()
    on: frozenset[str] = frozenset()
    kernels: bool = True  # False: every op has a kernel of its own

    @property
    def all_off(self) -> bool:
        """Whether every pattern is off that is not said to be on."""
        return ALL in self.off

    def turns_off(self, name: str) -> bool:
        """Whether the pattern or pass called `name` is off."""
        return name in self.off or (self.all_off and name not in self.on)

    @property
    def words(self) -> dict[str, Any]:
        """What run.json says of it, and what keeps caches apart."""
        return {"off": sorted(self.off), "on": sorted(self.on), "kernels": self.kernels}

    def patches(self) -> Iterator[Patch]:
        """What has Inductor's passes leave the patterns out that are off."""
        if self.off:
            check_names("--fusion-switch")
            yield standing_in(f"{_PASS}.apply", self._apply)

    def _apply(self, original: Callable[..., Any], passes: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a pass without the patterns that are off."""
        known = passes.patterns
        if passes.pass_name and self.turns_off(passes.pass_name):
            return 0
        kept = {
            place: [entry for entry in entries if not self.turns_off(name_of(entry))]
            for place, entries in known.items()
        }
        passes.patterns = type(known)(known.default_factory, kept)
        try:
            return original(passes, *args, **kwargs)
        finally:
            passes.patterns = known


def name_of(entry: Any) -> str:
    """A pattern's name: that of the function that rewrites, or of the one that is searched for."""
    handler = getattr(entry, "handler", None)
    if handler is None:
        check = entry.extra_check
        closed = inspect.getclosurevars(check).nonlocals if inspect.isfunction(check) else {}
        handler = closed.get("search_fn", check)
    return str(getattr(handler, "__name__", type(entry).__name__))


def fusions() -> dict[str, str]:
    """The names of all patterns and passes that this torch has, each with where it is from."""
    check_names("--fusion-switch")
    package = import_module("torch._inductor.fx_passes")
    for stage in ("joint_graph", "post_grad"):
        private(f"torch._inductor.fx_passes.{stage}:lazy_init")()
    found: dict[str, str] = {}
    for info in pkgutil.iter_modules(package.__path__):
        module = import_module(f"{package.__name__}.{info.name}") if info.name in _HOMES else None
        for passes in _passes_in(vars(module).values() if module else ()):
            names = [name_of(entry) for entries in passes.patterns.values() for entry in entries]
            for name in (*([passes.pass_name] if passes.pass_name else []), *names):
                found.setdefault(name, info.name)
    return found


_HOMES = frozenset(("pre_grad", "joint_graph", "post_grad", "split_cat", "b2b_gemm"))


def _passes_in(things: Iterable[Any]) -> Iterator[Any]:
    """The passes among the globals of a module, alone or in lists and dicts."""
    kind = private(_PASS)
    for thing in list(things):
        if isinstance(thing, dict):
            yield from (each for each in thing.values() if isinstance(each, kind))
        elif isinstance(thing, list):
            yield from (each for each in thing if isinstance(each, kind))
        elif isinstance(thing, kind):
            yield thing


def read_switches(path: Path) -> Switches:
    """Read a switch file; a name that this torch does not have is refused."""
    try:
        stated = json.loads(path.read_text())["Switch"]
        graph, kernels = stated.get(GRAPH, {}), stated.get(KERNELS, {})
        words = {word for side in (graph, kernels) for word in side.values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SelectionError(
            f"cannot read the switches in {path}: {error!r}", hint=f"write {_EXAMPLE}"
        ) from error
    unknown = words - {"on", "off"} or set(stated) - {GRAPH, KERNELS} or set(kernels) - {ALL}
    if unknown:
        said = ", ".join(sorted(map(str, unknown)))
        raise SelectionError(f"{path} says {said}, which means nothing", hint=f"write {_EXAMPLE}")
    _check(path, set(graph) - {ALL})
    by_word = {word: frozenset(n for n, w in graph.items() if w == word) for word in ("off", "on")}
    return Switches(by_word["off"], by_word["on"], kernels.get(ALL) != "off")


def switched_off(names: Iterable[str], besides: Switches) -> Switches:
    """`besides`, with the patterns and passes called `names` off as well."""
    wanted = frozenset(names)
    _check("--fusion-off", set(wanted) - {ALL})
    return replace(besides, off=besides.off | wanted, on=besides.on - wanted)


def _check(path: Path | str, names: set[str]) -> None:
    known = fusions() if names else {}
    for name in sorted(names - set(known)):
        near = ", ".join(closest(name, list(known))) or "none"
        raise SelectionError(
            f"{path} switches {name!r}, which this torch does not have; closest: {near}",
            hint="dumpcmp fusions lists them all",
        )
