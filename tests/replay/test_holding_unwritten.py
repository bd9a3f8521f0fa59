"""Memory that nobody had written to when it was recorded is held against nothing."""

import torch

from dumpcmp.judge.replaying import wrong
from dumpcmp.replay.holding import hold
from dumpcmp.replay.rating import Rerun

SLOT = "output.0"
UNKNOWN = torch.empty(2, 3, device="meta")


def test_what_an_op_leaves_unwritten_is_right_whatever_is_there() -> None:
    again = {SLOT: torch.zeros(2, 3)}
    everywhere = torch.ones(2, 3, dtype=torch.bool)
    held = hold(Rerun(again, is_exact=True, unwritten={SLOT: everywhere}), SLOT, UNKNOWN)
    assert held.is_known and not wrong(held)


def test_what_an_op_writes_is_open_where_nothing_was_recorded() -> None:
    some = torch.tensor([[True, False, True]] * 2)
    for unwritten in ({}, {SLOT: some}):
        held = hold(Rerun({SLOT: torch.zeros(2, 3)}, unwritten=unwritten), SLOT, UNKNOWN)
        assert not held.is_known and "nobody had written" in held.unknown
