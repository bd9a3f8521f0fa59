"""Roots are told in the order in which they came about: the backward pass last, and reversed."""

from dumpcmp.comparing.order_of_roots import in_order
from dumpcmp.nouns.key import Key, Op, Slot
from dumpcmp.nouns.row import Judgement, Row, Verdict


def root(op: str, slot: str, step: int = 0, verdict: Verdict = Verdict.FAIL) -> Row:
    key = Key("M", step, Op(op), 0, Slot(slot))
    return Row(key, 0, Judgement(verdict), golden_key=key, target_key=key, root=True)


def test_roots_are_told_in_the_order_of_the_backward_pass() -> None:
    rows = [root("a/gelu", "grad_input.0"), root("c/gelu", "grad_input.1"),
            root("d/neg", "output.0")]  # fmt: skip
    assert [row.key.op for row in in_order(rows)] == ["d/neg", "c/gelu", "a/gelu"]


def test_a_parameter_has_its_gradient_after_the_pass() -> None:
    rows = [root("a", "grad.weight"), root("a/gelu", "grad_input.0")]
    assert [row.key.op for row in in_order(rows)] == ["a/gelu", "a"]


def test_steps_come_first_and_what_could_not_be_read_last_of_its_step() -> None:
    rows = [root("a", "output.0", 1), root("b", "output.0", verdict=Verdict.ERROR),
            root("c", "grad_input.0")]  # fmt: skip
    assert [row.key.op for row in in_order(rows)] == ["c", "b", "a"]
