"""How often the hypothesis that is named for a difference is the kind of fault that was planted."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import torch

from benchmarks.tables import Table
from benchmarks.truth import asking
from benchmarks.truth.corpus import Goldens
from benchmarks.truth.held_models import HELD_OUT
from benchmarks.truth.kinds import KINDS, Planned, planned
from benchmarks.truth.models import MODELS, Model
from benchmarks.truth.planting import fault_at
from benchmarks.truth.watching import plainly
from dumpcmp.archive.read.reader import Archive
from dumpcmp.comparing.closeup import as_numbers
from dumpcmp.comparing.supposing import suppose
from dumpcmp.nouns.background import Hypothesis
from dumpcmp.nouns.key import Key, Op

SEEN = ("Llama", "GPT-2", "ViT", "conv net", "MoE decoder")
HELD = ("OPT", "Qwen2", "ConvNext", "OLMoE")
REGIONS = ("one index", "some indices", "from one index on")
# Kind of fault -> the names that are right for it. Others have no hypothesis of their own.
RIGHT: dict[str, tuple[str, ...]] = {
    "scale 1 + 2^-6": ("scale",),
    "scale 1 + 2^-9": ("scale",),
    "moved: scale 1 + 2^-6": ("scale",),
    "additive 1e-3 rms": ("offset",),
    "one row": ("repeated",),
    "moved: one row": ("repeated",),
    "one element": ("one element",),
    "swapped channels": ("swapped",),
    "stale value": ("zeroed", *REGIONS),
    "shifted sequence": ("shift", "reordered"),
    "moved: shifted": ("shift", "reordered"),
    "wrong cast": ("rounding",),
    "sign of a head": ("sign",),
}
OTHERS = ("wrong eps", "dropped bias", "wrong mask", "dropped residual")


def told(goldens: Goldens, plan: Planned) -> tuple[Hypothesis, ...] | None:
    """What is said of the output of the call that a fault struck; None where nothing differs."""
    fault = fault_at(plan)
    target = goldens.target(partial(fault.plant, answer=plainly), backward=False)
    ours, theirs = Archive(goldens(False)), Archive(target)
    op, _, call = str(plan.seen.site).rpartition("#")
    key = Key(ours.models[0], 0, Op(op), int(call), "output.0")
    if key not in ours or key not in theirs:
        return None
    golden, mine = ours.load(ours[key]), theirs.load(theirs[key])
    if golden.same_bits(mine) or golden.shape != mine.shape:
        return None
    return suppose(as_numbers(golden), as_numbers(mine), golden.dtype)


def lines(models: Mapping[str, Model], names: tuple[str, ...], which: str) -> Iterator[list[str]]:
    kinds = [kind for kind in KINDS if kind.name in RIGHT or kind.name in OTHERS]
    found: dict[tuple[str, str], list[tuple[Hypothesis, ...]]] = {}
    for name in names:
        for dtype in ("float32", "bfloat16"):
            with tempfile.TemporaryDirectory() as room:
                goldens = Goldens(models[name], dtype, Path(room))
                for plan in planned(goldens.seen(), dtype, f"looks {name} {dtype}", kinds, each=2):
                    if (said := told(goldens, plan)) is not None:
                        found.setdefault((dtype, plan.kind.name), []).append(said)
                asking.cleared(Path(room, "target"))
    for (dtype, kind), cases in sorted(found.items()):
        right = RIGHT.get(kind, ())
        first = sum(bool(said) and said[0].name in right for said in cases)
        any_of = sum(any(one.name in right for one in said) for said in cases)
        silent = sum(not said for said in cases)
        wrong = [said[0].name for said in cases if said and said[0].name not in right]
        shown = ", ".join(sorted(set(wrong))) or "none"
        hits = [f"{number} of {len(cases)}" for number in (first, any_of)]
        yield [which, dtype, kind, *hits, str(silent), shown]


def table() -> Table:
    """Plant faults and ask what their differences look like."""
    torch.set_num_threads(1)
    rows = [*lines(MODELS, SEEN, "seen"), *lines(HELD_OUT, HELD, "held out")]
    headings = ("models", "dtype", "planted", "named first", "named", "nothing said", "said else")
    how = "Kinds without a hypothesis of their own are right where nothing, or a place, is told."
    return Table("What a difference looks like", headings, rows, how)
