"""Reads what msProbe writes of a rank: dump.json, construct.json and dump_tensor_data/*.pt."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dumpcmp.archive.schema import checked_sizes
from dumpcmp.importing.foreign import Foreign, ForeignFileError, check_regular
from dumpcmp.importing.titles import Title, by_custom
from dumpcmp.nouns.budgets import MSPROBE, Spending
from dumpcmp.nouns.key import ROOT
from dumpcmp.nouns.record import Phase

DUMP, CONSTRUCT, TENSORS = "dump.json", "construct.json", "dump_tensor_data"
_SLOTS = {"input": "input", "input_args": "input", "input_kwargs": "input", "output": "output",
          "parameters": "param"}  # fmt: skip
_MODULE = re.compile(r"(?:Module|Cell)\.(?P<op>.+)\.(?P<target>\w+)\.(?P<phase>forward|backward)"
                     r"\.(?P<call>\d{1,9})")  # fmt: skip
_GRADIENTS = re.compile(r"(?:Module|Cell)\.(?P<op>.+)\.(?P<target>\w+)\.parameters_grad(?:\.\d+)?")
_FUNCTION = re.compile(r"(?P<kind>\w+)\.(?P<target>.+)\.(?P<call>\d{1,9})"
                       r"\.(?P<phase>forward|backward)")  # fmt: skip
_STATISTICS = ("Max", "Min", "Mean", "Norm", "md5")
_FILE = re.compile(
    r"(?P<call>.+\.(?:forward|backward)(?:\.\d+)?|.+\.parameters_grad(?:\.\d+)?)"
    r"\.(?:(?P<io>input|output|parameters)\.)?(?P<rest>[^/]+)"
)


@dataclass
class MsprobeRank:
    """What msProbe says of one rank in one step: the names that calls get, in their order."""

    directory: str  # from the source: "step0/rank1"
    order: dict[str, int] = field(default_factory=dict)  # of calls, as msProbe calls them
    parents: dict[str, Any] = field(default_factory=dict)
    files: dict[str, tuple[str, str]] = field(default_factory=dict)  # file -> call and slot there
    without: list[tuple[Foreign, str, str]] = field(default_factory=list)  # values with no file
    _calls: dict[str, tuple[str, int, str]] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    @classmethod
    def at(cls, place: Path, directory: str, files: frozenset[str]) -> MsprobeRank:
        """Read the JSON of the rank at `place`, of which `files` are there."""
        told, parents = _read(place / DUMP), _read(place / CONSTRUCT)
        found = cls(directory, parents=parents)
        listed = told.get("data")
        if not isinstance(listed, dict):
            raise ForeignFileError(
                f"{place / DUMP}: it has no object 'data'", hint="is it of msProbe, and complete?"
            )
        for number, (call, values) in enumerate(listed.items()):
            found.order[call] = number
            for slot, value in _tensors(values):
                name = value.get("data_name")
                if isinstance(name, str) and name in files:
                    found.files[name] = call, slot
                else:
                    found.without.append((_statistics(place, call, value), call, slot))
        return found

    def title(self, name: str, inner: str) -> Title:
        """What the value in the file `name` is called."""
        call, slot = self.files.get(name) or _of_file(name)
        return self.named(call, f"{slot}.{inner}" if inner else slot)

    def named(self, call: str, slot: str) -> Title:
        """What the value `slot` of msProbe's `call` is called."""
        where = by_custom(self.directory, "")
        order = self.order.setdefault(call, len(self.order))
        op, number, target = self._call(call)
        backward = ".backward" in call
        if backward:  # msProbe's input of the backward is the gradient of the forward's output
            kind, _, rest = slot.partition(".")
            slot = {"input": "grad_output", "output": "grad_input"}.get(kind, kind) + f".{rest}"
        if _GRADIENTS.fullmatch(call):
            slot = f"grad.{slot.partition('.')[2]}"
        phase = Phase.BACKWARD if backward else Phase.FORWARD
        title = Title(op, slot, where.step, where.rank, number, order, target)
        return replace(title, phase=phase) if phase is not title.phase else title

    def _call(self, call: str) -> tuple[str, int, str]:
        """The op, the number and the target of a call; a backward has those of its forward."""
        if call not in self._calls:
            self._calls[call] = self._found(call)
        return self._calls[call]

    def _found(self, call: str) -> tuple[str, int, str]:
        if gradients := _GRADIENTS.fullmatch(call):
            return gradients["op"], 0, gradients["target"]
        if module := _MODULE.fullmatch(call):
            return module["op"], int(module["call"]), module["target"]
        function = _FUNCTION.fullmatch(call)
        if not function:
            return call, 0, ""
        if function["phase"] == "backward":
            forward = f"{call.removesuffix('backward')}forward"
            if forward in self.order:
                return self._call(forward)
        name = function["target"].rpartition(".")[2]
        name = name.strip("_") if name.startswith("__") else name
        op = f"{self._scope(call)}/{name}"
        number = self._counts[op] = self._counts.get(op, -1) + 1
        return op, number, f"{function['kind']}.{function['target']}"

    def _scope(self, call: str) -> str:
        """The module in which a function ran, and which call of it: ``layers.0.attn@1``."""
        seen: set[str] = set()
        parent = self.parents.get(call)
        while isinstance(parent, str) and parent not in seen:
            seen.add(parent)
            if module := _MODULE.fullmatch(parent):
                number = int(module["call"])
                return f"{module['op']}@{number}" if number else module["op"]
            parent = self.parents.get(parent)
        return ROOT


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; an empty one where there is no such file."""
    check_regular(path)
    if not path.is_file():
        return {"data": {}}
    Spending(MSPROBE, path, path.stat().st_size)
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ForeignFileError(
            f"{path}: it is no JSON: {error}",
            hint="msProbe completes it in stop(); without it, remove it: the .pt files have names",
        ) from None
    if not isinstance(found, dict):
        raise ForeignFileError(f"{path}: it is no JSON object", hint="is it of msProbe?")
    return found


def _tensors(values: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The tensors of a call, each with its slot."""
    for kind, tree in values.items() if isinstance(values, dict) else ():
        if kind in _SLOTS:
            yield from _leaves(tree, _SLOTS[kind])
        else:  # a parameter, of whose gradients there is a list of one
            only = tree[0] if isinstance(tree, list) and len(tree) == 1 else tree
            yield from _leaves(only, f"param.{kind}")


def _leaves(tree: Any, path: str, depth: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    if depth > MSPROBE.depth:
        raise ForeignFileError(f"{path[:80]}: lists lie more than {depth - 1} deep in {DUMP}")
    if isinstance(tree, dict) and "Tensor" in str(tree.get("type", "")):
        yield path, tree
    elif isinstance(tree, dict | list):
        branches = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for name, branch in branches:
            yield from _leaves(branch, f"{path}.{name}", depth + 1)


def _statistics(place: Path, call: str, told: dict[str, Any]) -> Foreign:
    """A tensor of which there are no elements, but perhaps numbers."""
    numbers = ", ".join(
        f"{name} {told[name]}" for name in _STATISTICS if told.get(name) is not None
    )
    try:
        shape = checked_sizes(told.get("shape") or ())
    except (TypeError, ValueError):
        shape = ()
    lost = f"{told['data_name']} is not there" if told.get("data_name") else "msProbe kept none"
    dtype = str(told.get("dtype", "")).removeprefix("torch.")
    problem = f"its elements were not kept: {lost}" + f" ({numbers[:200]})" * bool(numbers)
    return Foreign(place / DUMP, call, dtype, shape, problem)


def _of_file(name: str) -> tuple[str, str]:
    """The call and the slot that the name of a file tells."""
    stem = name.removesuffix(".pt")
    found = _FILE.fullmatch(stem)
    if not found:
        return stem, "output.0"
    return found["call"], f"{_SLOTS.get(found['io'] or '', 'param')}.{found['rest']}"
