"""What is known of effects besides them: whether a run records them, how it began and ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dumpcmp.archive.read.reader import Archive
from dumpcmp.comparing.requests import Asking
from dumpcmp.comparing.side import Side
from dumpcmp.nouns.effects import Effect
from dumpcmp.nouns.key import ROOT


def records_effects(archive: Archive, effect: Effect = Effect.RESULT) -> bool:
    """Whether the run recorded effects of this kind: earlier versions recorded none."""
    told = [facts.get("run", {}).get("effects") for facts in archive.run.values()]
    return bool(told) and all(isinstance(kinds, list) and effect in kinds for kinds in told)


def last_step(side: Side, model: str) -> int:
    """The last step of `model` that ran, which may have come after the last that is recorded.

    Where microbatches are parts of one step, it is the one that the last of them is a part of.
    """
    runs = [facts.get("run", {}).get("last_steps") for facts in side.archive.run.values()]
    parts = [own for own, whole in side.places.items() if whole[0] == model]
    names = {model, *(name for name, _ in parts)}
    told = [run[name] for run in runs if isinstance(run, dict) for name in names
            if isinstance(run.get(name), int)]  # fmt: skip
    last = max(told, default=last_recorded(side, model))
    return next((side.places[own][1] for own in parts if own[1] == last), last)


def last_recorded(side: Side, model: str) -> int:
    """The last step of `model` that is recorded, in the same terms; -1 where none is."""
    own = max(side.archive.steps(model), default=-1) if model in side.archive.models else -1
    return side.places.get((model, own), (model, own))[1]


def first_generators(archive: Archive, rank: int) -> dict[str, Any]:
    """The generators of a rank as its first step began: seed and state of each."""
    found = archive.run.get(rank, {}).get("run", {}).get("generators")
    return found if isinstance(found, dict) else {}


def silent_roots(side: Side, who: str) -> Iterator[str]:
    """Steps of an archive without effects whose root returned nothing that was recorded."""
    if records_effects(side.archive):
        return
    asked = Asking.of(side.archive)
    if not asked.is_stated or not asked.tap.outputs or not asked.tap.selects_op(ROOT):
        return
    first: dict[str, int] = {}
    for site, call in side.listing.calls.items():
        if site.op != ROOT or site.call or not call.target:
            continue
        keys = side.listing.sites.get(site, ())
        if not any(key.slot.is_output for key in keys):
            first.setdefault(site.model, site.step)
    for model, step in first.items():
        yield (
            f"{who}: {model} returned no tensor at token {step}, and what it returned "
            "instead was not recorded: dump it again"
        )
