"""Runs a graph a second time with every op's value stored, and keeps what its kernels vouch for.

A fused kernel never stores most of what it computes. Its twin is the same graph, lowered by the
same compiler, in which every op also stores a copy of its value; it runs on the same inputs,
after the graph itself. What only the twin stores counts as the kernel's own where the twin gives
all that the kernel does store, bit for bit; elsewhere it is dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx

from dumpcmp.nouns.errors import CaptureError, DumpcmpError
from dumpcmp.nouns.spoken import counted
from dumpcmp.pytorch.names import patched, private, standing_in
from dumpcmp.taps.inductor.graphed import copy_of
from dumpcmp.taps.inductor.single_calls import SingleCalls
from dumpcmp.taps.inductor.tables import TapTable, marks_in
from dumpcmp.taps.inductor.views import replay
from dumpcmp.taps.modes.traced import Mark
from dumpcmp.taps.recording.sources import digest_of

Put = Callable[[Sequence[Mark], Tensor], None]


def lowered_again(graph: Any, codegen: Callable[..., Any], stored: Iterable[fx.Node]) -> str:
    """The code of Inductor's `graph` with `stored` nodes copied out."""
    handlers = private("torch._inductor.virtualized:V")
    twin = type(graph)(
        graph.module,
        example_inputs=graph.example_inputs,
        shape_env=graph._shape_env,
        graph_id=graph.graph_id,
        is_inference=graph.is_inference,
        is_backward=graph.is_backward,
        inputs_to_check=graph.inputs_to_check,
    )
    with (
        _copying(twin, set(stored)),
        handlers.set_graph_handler(twin),
        handlers.set_extern_kernel_nodes([]),
    ):
        twin.run(*graph.example_inputs)
        code: str = codegen(twin)[0].value
    if not set(twin.constants) <= set(graph.constants):
        raise CaptureError("the twin of a graph has constants that the graph does not have")
    return code


@contextmanager
def _copying(twin: Any, nodes: set[fx.Node]) -> Iterator[None]:
    """Have `twin` store a copy of the value of each of `nodes`, which nothing else reads.

    The expressions that other nodes are computed by stay as they are: to store the value
    itself would have them read it back, rounded to its dtype.
    """
    run_node, copies = twin.run_node, list[str]()
    scheduler = "torch._inductor.scheduler:Scheduler"

    def copying(node: fx.Node) -> Any:
        result = run_node(node)
        if node in nodes:
            copies.extend(_stored_copy(node, result))
        return result

    def eliminating(original: Callable[..., Any], scheduler: Any) -> None:
        scheduling = private("torch._inductor.scheduler")
        for name in copies:
            reader = scheduling.OutputNode(scheduling.StarDep(name))
            scheduler.name_to_buf[name].users.append(scheduling.NodeUser(reader))
        original(scheduler)

    twin.run_node = copying
    with (
        private("torch._inductor.config:patch")(inplace_buffers=False),
        patched(standing_in(f"{scheduler}.dead_node_elimination", eliminating)),
    ):
        yield


def _stored_copy(node: fx.Node, value: Any) -> Iterator[str]:
    """The name of a new buffer that holds what `node` was lowered to."""
    ir = private("torch._inductor.ir")
    if isinstance(value, ir.TensorBox):
        with ir.IRNode.current_origins({node}):
            copy = private("torch._inductor.lowering:clone")(value)
            copy.data.data._post_init_setattr("origin_node", node)
            yield copy.realize() or copy.get_name()


def load_code(code: str, constants: Mapping[str, Any]) -> Any:
    """The module of generated `code`; of its `constants`, those that it leaves open are set."""
    module = private("torch._inductor.codecache:PyCodeCache").load(code)
    for name in [name for name, value in vars(module).items() if value is None]:
        if constants.get(name) is not None:
            setattr(module, name, constants[name])
    return module


class Twins:
    """What came of the twins of a run."""

    def __init__(self) -> None:
        self.same = 0  # runs of kernels whose twin gave the same bits
        self.other = 0  # runs of kernels whose twin did not
        self.problems: Counter[str] = Counter()  # why graphs ran without one

    def to_json(self) -> dict[str, Any]:
        """As run.json holds it; the text is empty where no twin ran."""
        ran = self.same + self.other
        runs = counted(ran, "run")
        text = f"twins: {self.same} of {runs} of fused kernels seen inside, with the same bits"
        told = {"same": self.same, "other": self.other, "problems": dict(self.problems)}
        return {**told, "text": text if ran else ""}

    def remarks(self) -> list[str]:
        """What the user must hear: which graphs ran without a twin, and why."""
        return [
            f"{counted(n, 'run')} of graphs had no twin: {why}" for why, n in self.problems.items()
        ]


class TwinGraph:
    """The twin of one piece of generated code, and what is known of both."""

    def __init__(self, table: TapTable, names: dict[str, Any], tap: Callable[..., None]) -> None:
        assert table.twin is not None
        self.code, self._names, self._tap = table.twin, names, tap
        self.problem = table.twin.problem
        self.changed, self.has_single_calls = table.changed, table.has_single_calls
        self.kernels: dict[int | None, set[str]] = {}  # op -> the kernels that it is computed in
        for kernel, ops in table.kernels.items():
            for op in ops:
                self.kernels.setdefault(op, set()).add(kernel)
        self.proofs = [line.name for line in table.lines]
        self.stored = table.proofs
        read = [*(line.readings for line in table.lines), *(each for _, each in table.inputs)]
        seen = {mark for readings in read for mark in marks_in(readings)}
        shown = [(mark, line.op) for line in self.code.lines for mark in marks_in(line.readings)]
        # What only the twin stores, and the op that computes it.
        self.hidden = {mark: op for mark, op in shown if mark not in seen}

    @cached_property
    def call(self) -> Callable[[list[Any]], Any]:
        """The entry of the twin's code, which is compiled now."""
        module = load_code(self.code.code, self._names)
        module._dumpcmp = self._tap
        entry: Callable[[list[Any]], Any] = module.call
        return entry


class Check:
    """One run of a graph, and of its twin after it."""

    def __init__(self, twin: TwinGraph, wanted: Iterable[Mark], put: Put, twins: Twins) -> None:
        self._twin, self._put, self._twins = twin, put, twins
        self._wanted = set(wanted)
        around = (twin.kernels.get(twin.hidden[mark], set()) for mark in self._wanted)
        kernels = set[str]().union(*around)
        self._open = {k: set(twin.stored[k]) for k in kernels if k in twin.stored}
        self._sound = {k: k in self._open for k in kernels}  # without a proof there is no trust
        self._proofs = set[str]().union(*self._open.values())
        self._prints: dict[str, object] = {}
        self._held: list[tuple[set[str], list[Mark], Tensor]] = []
        self._args: list[Any] = []
        self._single = SingleCalls() if twin.has_single_calls else None

    def begin(self, args: Sequence[Any]) -> None:
        """Keep the arguments for the twin: of those that the graph writes to, copies."""
        with self._sparing():
            changed = self._twin.changed
            self._args = [copy_of(a) if i in changed else a for i, a in enumerate(args)]

    def running(self) -> AbstractContextManager[Any]:
        """What the graph itself runs within."""
        return self._single.keeping() if self._single else nullcontext()

    def note(self, number: int, tensor: Tensor) -> None:
        """Remember what the graph itself stores, to hold the twin against."""
        proof = self._twin.proofs[number]
        if proof in self._proofs:
            self._prints[proof] = fingerprint(tensor)

    def end(self) -> None:
        with self._sparing():
            if not self._twin.problem:
                with self._single.giving() if self._single else nullcontext():
                    self._twin.call(self._args)
        self._sound.update(dict.fromkeys(self._open, False))
        self._twins.same += sum(self._sound.values())
        self._twins.other += len(self._sound) - sum(self._sound.values())

    @contextmanager
    def _sparing(self) -> Iterator[None]:
        """Whatever the twin raises is told, and is none of the program's business.

        What the archive raises is: a full disk ends the dump.
        """
        try:
            yield
        except DumpcmpError:
            raise
        except Exception as error:  # of any kind
            first = str(error).partition("\n")[0]
            self._twin.problem = f"it stopped with {type(error).__name__}: {first}"
            self._twins.problems[self._twin.problem] += 1

    def read(self, number: int, tensor: Tensor, sizes: Sequence[int]) -> None:
        """The twin has just stored `tensor`."""
        line = self._twin.code.lines[number]
        if line.name in self._prints:
            self._compare(line.name, tensor)
        kernels = self._twin.kernels.get(line.op, set())
        sound = bool(kernels) and all(self._sound.get(k, False) for k in kernels)
        for views, marks in line.readings:
            wanted = [mark for mark in marks if mark in self._wanted]
            self._wanted.difference_update(wanted)
            if wanted and sound:
                self._held.append((kernels, wanted, replay(tensor, views, sizes).clone()))
        self._release()

    def _compare(self, proof: str, tensor: Tensor) -> None:
        agrees = fingerprint(tensor) == self._prints.pop(proof)
        for kernel in [k for k, proofs in self._open.items() if proof in proofs]:
            self._sound[kernel] &= agrees
            self._open[kernel].discard(proof)
            if not self._open[kernel]:
                del self._open[kernel]

    def _release(self) -> None:
        """Record what is held of kernels that have proved to agree; drop that of others."""
        held, self._held = self._held, []
        for kernels, wanted, value in held:
            if not all(self._sound[k] for k in kernels):
                continue
            if kernels.isdisjoint(self._open):
                self._put(wanted, value)
            else:
                self._held.append((kernels, wanted, value))


def fingerprint(tensor: Tensor) -> object:
    """What two tensors share only if their elements have the same bits, wherever they lie."""
    facts = tensor.dtype, tuple(tensor.shape)
    if tensor.device.type == "cpu":
        return facts, digest_of(tensor)
    words = tensor.contiguous().view(-1).view(_WORDS[tensor.element_size()]).long()
    weights = torch.arange(words.numel(), device=words.device) * _STEP + 1
    return facts, int((words * (weights ^ (weights >> 29))).sum())


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
_STEP = 0x1E3779B97F4A7C15
