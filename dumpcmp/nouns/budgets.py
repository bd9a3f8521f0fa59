"""How much a reader takes of what it is given: all bounds of all readers, and who counts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from dumpcmp.nouns.errors import DumpcmpError

MB = 1 << 20


class BudgetError(DumpcmpError):
    """An input that asks for more than its reader gives."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What one input of a kind may ask for. `seconds` of computing are for each megabyte begun."""

    what: str  # as a sentence calls the input
    nbytes: int
    nodes: int = 1_000_000  # values, links, lines: whatever the reader walks through
    depth: int = 64  # lists in lists
    names: int = 1_000_000  # that it may list
    seconds: float = 30.0


MAPPING = Budget("a YAML file of names", MB, nodes=30_000, depth=16, names=10_000, seconds=20.0)
SAFETENSORS = Budget("a .safetensors header", 100_000_000)  # as the format itself says
NUMPY = Budget("a .npy header", 16_384)
ZIP = Budget("a zip of arrays", 1 << 62, names=1 << 17, seconds=60.0)
TORCH = Budget("a .pt", 1 << 62, nodes=2_000_000, depth=64, names=1 << 20)
MSPROBE = Budget("the JSON of msProbe", 1 << 30, depth=64)
RUN = Budget("run.json", 64 * MB)
MANIFEST = Budget("manifest.json", 256 * MB)
INDEX = Budget("an index of a part", 256 * MB)  # or a group of it
TEXT = Budget("a text beside the parts", 256 * MB)
JSON_REPORT = Budget("a JSON report", 2 << 30, nodes=50_000_000)
LOGPROBS = Budget("a file of log probabilities", 8 << 30, nodes=10_000_000)  # lines of it
MOST_TOKENS = 1 << 24  # of a sequence, by the positions that its entries tell
WEIGHT_INDEX = Budget("an index of a checkpoint", 256 * MB)
ONNX = Budget("an ONNX protobuf", (2 << 30) - 1, nodes=1_000_000, depth=32)
FIXTURE = Budget("a golden fixture", 16 << 30, names=100_000)
METRIC = Budget("a pair of arrays of a --metric", 1 << 62, seconds=60.0)
ALL = (
    MAPPING, SAFETENSORS, NUMPY, ZIP, TORCH, MSPROBE, RUN, MANIFEST, INDEX, TEXT, JSON_REPORT,
    LOGPROBS, WEIGHT_INDEX, FIXTURE, METRIC,
)  # fmt: skip

MOST_INFLATED = 1032  # times larger: what deflate comes to at best
MOST_AGAIN = (
    100_000  # values of a .pt that are reached again, through what stands in several places
)
MOST_PIECES = 4096  # names that one line of a mapping stands for
MOST_FREE_STARS = 3  # wildcards of a name that may end anywhere: each is tried at every place
_LOOKS = 256  # nodes between two looks at the clock


@dataclass(slots=True)
class Spending:
    """What the reader of one input has used of its budget; BudgetError says which was exceeded."""

    budget: Budget
    place: str | Path
    nbytes: int  # of the input
    _nodes: int = 0
    _names: int = 0
    _began: float = field(default_factory=time.thread_time)

    def __post_init__(self) -> None:
        self._hold("bytes", self.nbytes, self.budget.nbytes)

    @property
    def seconds(self) -> float:
        """How long the input may be worked on, by its size."""
        return self.budget.seconds * (1 + self.nbytes // MB)

    def node(self, depth: int = 0, count: int = 1) -> None:
        """Count something that is walked through, so deep inside of others."""
        before = self._nodes
        self._nodes += count
        self._hold("values", self._nodes, self.budget.nodes)
        self._hold("levels, one inside of the other", depth, self.budget.depth)
        if self._nodes // _LOOKS != before // _LOOKS:
            self.look()

    def name(self, count: int = 1) -> None:
        """Count names that are listed."""
        self._names += count
        self._hold("names", self._names, self.budget.names)

    def look(self) -> None:
        """Look at the clock of this thread."""
        spent = time.thread_time() - self._began
        if spent > self.seconds:
            self._exceeded(f"{self.seconds:g} seconds of computing for {self.nbytes} bytes")

    def _hold(self, what: str, count: int, most: int) -> None:
        if count > most:
            self._exceeded(f"{most} {what}")

    def _exceeded(self, what: str) -> None:
        raise BudgetError(
            f"{self.place}: more than {what}, which {self.budget.what} may have at most",
            hint="nothing of it was used; docs/design/reliability.md lists the budgets of readers",
        )
