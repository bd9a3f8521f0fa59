"""Runs nodes of a dump again in float64, and holds what was recorded against that."""

from __future__ import annotations

from torch import Tensor

import dumpcmp
from dumpcmp.judge.replaying import wrong
from dumpcmp.nouns.record import Call
from dumpcmp.replay.arguments import slots_in
from dumpcmp.replay.choosing import chooses
from dumpcmp.replay.holding import hold
from dumpcmp.replay.running import rerun


def wrongs_of(archive: dumpcmp.Archive, call: Call) -> list[str]:
    """What is wrong with the outputs of `call` that were recorded; at least the first was."""

    def tensor(slot: str) -> Tensor:
        return archive.tensor(call.op, step=call.step, call=call.call, slot=slot, model=call.model)

    given = {slot: tensor(slot) for slot in slots_in(call.arguments)}
    again = rerun(call, given)
    if chooses(call, given, again.outputs):
        return []
    found = {}
    for slot in again.outputs:
        try:
            found[slot] = hold(again, slot, tensor(slot))
        except dumpcmp.MissingValueError:
            if slot == "output.0":
                raise
    return [message for one in found.values() if (message := one.unknown or wrong(one))]
