"""What an Op and a Slot are is told when they are made, and travels with them."""

from __future__ import annotations

import copy
import pickle

import pytest

from dumpcmp.nouns.key import Key, Op, Slot

SLOTS = {
    "input.0": ["is_input"],
    "param.weight": ["is_input", "is_weight"],
    "buffer.mean": ["is_input", "is_weight"],
    "output.logits": ["is_output"],
    "grad_output.0": ["is_gradient"],
    "grad.weight": ["is_gradient", "is_parameter_gradient"],
    "rng.cpu": ["is_generator"],
}


@pytest.mark.parametrize("text", SLOTS)
def test_a_slot_says_what_it_holds_wherever_it_goes(text: str) -> None:
    slot = Slot(text)
    sent = pickle.loads(pickle.dumps(slot))  # noqa: S301
    for one in (slot, copy.copy(slot), copy.deepcopy(slot), sent):
        assert one == text and type(one) is Slot
        assert [word for word in sorted(Slot.__slots__) if getattr(one, word)] == SLOTS[text]


@pytest.mark.parametrize(
    "text, function",
    [("<root>", ""), ("layers.3.attn@1/linear", "linear"), ("a/backward.b/c", "backward.b/c")],
)
def test_an_op_says_its_function_wherever_it_goes(text: str, function: str) -> None:
    op = pickle.loads(pickle.dumps(Key("m", 0, text, 0, "output.0"))).op  # noqa: S301
    for one in (Op(text), copy.deepcopy(op), op):
        assert (one.function, one.is_module, type(one)) == (function, not function, Op)
