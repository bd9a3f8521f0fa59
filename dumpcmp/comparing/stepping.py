"""Finds which steps of two archives belong together, before anything else is read of them."""

from __future__ import annotations

from dataclasses import replace

from dumpcmp.align.counting import (
    AS_COUNTED,
    Counting,
    found_counting,
    stated_counting,
    tells_its_counting,
)
from dumpcmp.align.listing import Listing
from dumpcmp.align.pairing import paired_models
from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.key import ROOT

_MOST = 16  # steps at the front that tell how they are counted
_FEW = 4096  # values of them: their indexes are not read again for the comparison itself


def counted_steps(golden: Archive, target: Archive, token_offset: int | None) -> Counting:
    """How the target counts its steps: as the user says, or as what the steps were given tells."""
    models = paired_models(golden.models, target.models)
    alike = all(len(target.steps(mine)) == 1 for mine in models)
    alike = alike and all(golden.steps(name) == target.steps(m) for m, name in models.items())
    if alike and token_offset is None:
        return replace(AS_COUNTED, names=models)
    ours, theirs = _roots(golden), _roots(target)
    if token_offset is None:
        found = found_counting(ours, theirs, models, golden.load, target.load)
    else:
        found = stated_counting(ours, theirs, models, token_offset)
    return replace(found, names=models)


def is_count_settled(golden: Archive, target: Archive, token_offset: int | None) -> bool:
    """Whether more steps of a target that is still running cannot change how it counts them."""
    if token_offset is not None or any(len(target.steps(m)) > _MOST for m in target.models):
        return True
    models = paired_models(golden.models, target.models)
    return tells_its_counting(_roots(golden), _roots(target), models)


def _roots(archive: Archive) -> Listing:
    """What the models of a run were given, step by step."""
    places = [(model, step) for model in archive.models for step in archive.steps(model)[:_MOST]]
    keys = (key for place in places for key in archive.keys_of(*place, ROOT))
    values = {key: archive.shards(key) for key in keys}
    firsts = {records[0].same_as for records in values.values()} - values.keys() - {None}
    values |= {key: archive.shards(key) for key in firsts if key is not None}
    if sum(archive.num_values(*place) for place in places) > _FEW:
        archive.forget()
    return Listing(values)
