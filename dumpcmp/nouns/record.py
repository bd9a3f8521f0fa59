"""What travels from a captured run into an archive and out again: Calls and Records."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from dumpcmp.nouns.key import Key, Op, Site
from dumpcmp.nouns.quickly import quickly_made
from dumpcmp.nouns.sampled import EVENLY, ROWS, Sample

NO_KERNEL = "no kernel"  # the kernel of an op that a compiled graph has, but never computes
UNWRITTEN = "memory that nobody has written to has no value"  # the problem of what `empty` gives
VMAP = "vmap"  # where a value was seen that has the batch of a vmap in front, and at which level
TWIN = "twin"  # where a value was seen that only the twin of a fused kernel stores


Where = tuple[str, int, str]  # of a value within its step: op, call and slot


class Phase(StrEnum):
    """In which part of a step a call ran."""

    FORWARD = "forward"
    BACKWARD = "backward"
    RECOMPUTE = "recompute"  # a forward that activation checkpointing ran again


@quickly_made
@dataclass(frozen=True, slots=True)
class Call:
    """One execution of an op: what a reader needs to explain it, and a replay to run it again."""

    model: str
    step: int
    op: Op
    call: int
    order: int  # position in the step's execution
    target: str = ""  # "torch.nn.functional.linear", or a module's class
    source: str = ""  # "model.py:31", the user's line
    phase: Phase = Phase.FORWARD
    arguments: str = ""  # JSON: the argument tree, tensors as {"slot": "input.0"}
    origins: tuple[str, ...] = ()  # a fused kernel: the ops inside, as "op#call"
    kernel: str = ""  # a fused kernel: its name
    thread: str = ""  # that ran it, by name; empty for the main thread

    @property
    def site(self) -> Site:
        """What this call is named by."""
        return Site(self.model, self.step, self.op, self.call)

    @property
    def is_compiled(self) -> bool:
        """Whether it ran inside a compiled graph, which has its op under the name of a kernel."""
        return bool(self.kernel)

    @property
    def is_removed(self) -> bool:
        """Whether no kernel computes it: the compiler folded it into others or removed it."""
        return self.kernel == NO_KERNEL


class Kept(StrEnum):
    """How much of a value an archive holds."""

    FULL = "full"
    SUMMARY = "summary"  # or some of its rows: `Record.sample` tells
    NOTHING = "nothing"  # `Record.problem` says why

    @property
    def holds(self) -> bool:
        """Whether there is anything to hold against another value."""
        return self is not Kept.NOTHING


@dataclass(frozen=True, slots=True)
class Stored:
    """What an archive holds in place of a value's elements: a Summary, or some of its rows.

    The bytes have their own `dtype` and `shape`; `attributes` are numbers and words beside them.
    """

    dtype: str
    shape: tuple[int, ...]
    attributes: tuple[tuple[str, str | int | float], ...] = ()


@quickly_made
@dataclass(frozen=True, slots=True)
class Location:
    """Where the bytes of a value lie: `nbytes` at `offset` of the file `part`."""

    part: Path
    offset: int
    nbytes: int
    dataset: str = ""  # path of a dataset that only HDF5 can read: chunked or compressed


@quickly_made
@dataclass(frozen=True, slots=True)
class Record:
    """One value as one rank saw it: its Key and everything about it except the elements."""

    key: Key
    order: int  # position of its call in the step's execution
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...] = ()  # of the captured tensor, in elements; the archive holds it dense
    storage_offset: int = 0
    device: str = "cpu"
    rank: int = 0
    layout: str = ""  # how the value lies over the mesh, such as "b s h[tp]"
    same_as: Key | None = None  # the earlier value that this one is: a link, and a data-flow edge
    kept: Kept = Kept.FULL
    problem: str = ""  # why a value could not be stored: "sparse_coo tensors have no dense bytes"
    digest: str = ""  # xxh3_128 of the stored bytes, hexadecimal
    location: Location | None = None  # set by the archive that holds the bytes
    stored: Stored | None = None  # what stands in the archive for the elements; None: they do
    seen_in: str = ""  # TWIN where the twin of a fused kernel stored it; "vmap 1" inside of vmap

    @property
    def is_twin(self) -> bool:
        """Whether the twin of a fused kernel stored it, not the kernel itself."""
        return self.seen_in == TWIN

    @property
    def sample(self) -> Sample | None:
        """The rows that are kept, where those stand for the value."""
        if self.stored is None or (ROWS, EVENLY) not in self.stored.attributes:
            return None
        return Sample.of(self.stored.shape[0] if self.stored.shape else 0, self.shape)

    @property
    def is_batch(self) -> bool:
        """Whether its op saw single examples of it, inside of torch.func.vmap."""
        return self.seen_in.startswith(VMAP)


class Source(Protocol):
    """The elements of a captured tensor, able to put themselves where they are wanted.

    One that takes the xxh3_128 of the bytes while it copies them may have it as `digest`, in
    hexadecimal; a sink then need not take it again. One that lies in the host's memory may say
    where, as `lying`: address, bytes of an element, shape and stride. A sink that copies from there
    sets the digest.
    """

    @property
    def nbytes(self) -> int:
        """Bytes of all elements, dense."""

    def copy_into(self, room: memoryview) -> Callable[[], None] | None:
        """Copy the elements, dense and in row-major order, into `room` of just `nbytes`.

        Returns None when they are there, or a function that waits until they are.
        """


class Sink(Protocol):
    """Receives what a capture sees, in execution order."""

    def call(self, call: Call) -> None:
        """Receive a call, before the Records of its values."""

    def put(self, record: Record, source: Source | None) -> None:
        """Receive a value; `source` is None for a link (`same_as`) or a `problem`."""

    def text(self, model: str, name: str, text: str) -> None:
        """Receive a readable companion of the run, such as a graph as code."""


class KnowingSink(Sink, Protocol):
    """One that knows the forms of values again, so that they need not be described each time."""

    def form_of(self, record: Record) -> object | None:
        """The form of `record`, which was `put`; None where others are not known by it."""

    def put_known(
        self, call: Call, slot: str, form: Any, source: Source | None, same_as: Where | None
    ) -> bool:
        """Receive a value of `call` as `put` does; False where it must be described after all.

        It is like that Record of which `form_of` gave `form` in all but key, order and link.
        """
