"""Roots and heirs: who is blamed, from small runs written down as calls and verdicts."""

from dataclasses import dataclass, replace

import pytest

from dumpcmp.align.listing import Listing
from dumpcmp.comparing.blame import blame, in_order
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Record
from dumpcmp.nouns.replay import Origin
from dumpcmp.nouns.row import Judgement, Row, Verdict

PASS, FAIL, NONFINITE = Verdict.PASS, Verdict.FAIL, Verdict.NONFINITE


@dataclass
class Written:
    """Rows and links of a comparison, written call by call."""

    rows: list[Row]
    golden: dict[Key, Key]
    target: dict[Key, Key]

    def blamed(self) -> list[Row]:
        return blame(self.rows, linked(self.golden), linked(self.target))

    def roots(self) -> list[str]:
        return [f"{row.key.op} {row.key.slot}" for row in self.blamed() if row.root]

    def causes(self) -> dict[str, str]:
        return {f"{r.key.op} {r.key.slot}": r.cause.op for r in self.blamed() if r.cause}


def linked(links: dict[Key, Key]) -> Listing:
    return Listing(
        {key: (Record(key, 0, "float32", (), same_as=first),) for key, first in links.items()}
    )


def run(*lines: str) -> Written:
    """Read lines such as ``"a/mul input.0=x FAIL"`` or ``"b output.0 PASS golden"``.

    ``=op.slot`` links a value to an earlier one; the last word says which side alone has the row.
    """
    made = Written([], {}, {})
    for order, line in enumerate(lines):
        op, slot, verdict, *alone = line.split()
        slot, _, link = slot.partition("=")
        key = Key("M", 0, op, 0, slot)
        golden = key if alone != ["target"] else None
        target = key if alone != ["golden"] else None
        made.rows.append(
            Row(key, order, Judgement(Verdict(verdict)), golden_key=golden, target_key=target)
        )
        for text in filter(None, link.split("|")):
            where, _, source = text.rpartition(":")
            first_op, _, first_slot = source.partition(">")
            first = Key("M", 0, first_op, 0, first_slot)
            for name, links in (("golden", made.golden), ("target", made.target)):
                if where in ("", name):
                    links[key] = first
    return made


CASES = [
    ("a gradient that fails where the value that it is agrees", [
        "a/linear output.0 PASS", "a/linear grad_input.1 PASS",
        "a grad.weight=a/linear>grad_input.1 FAIL",
    ], ["a grad.weight"]),
    ("an op whose inputs agree", [
        "a/mul input.0 PASS", "a/mul output.0 FAIL",
        "b/add input.0=a/mul>output.0 FAIL", "b/add output.0 FAIL",
    ], ["a/mul output.0"]),
    ("two faults, one after the other healed", [
        "a/mul input.0 PASS", "a/mul output.0 FAIL",
        "b/add input.0 PASS", "b/add output.0 FAIL",
    ], ["a/mul output.0", "b/add output.0"]),
    ("a weight that differs", [
        "a/linear input.0 PASS", "a/linear input.1 FAIL", "a/linear output.0 FAIL",
    ], ["a/linear input.1"]),
    ("an input from nowhere after a divergence is no root", [
        "a/mul input.0 PASS", "a/mul output.0 FAIL", "b/add input.0 FAIL", "b/add output.0 FAIL",
    ], ["a/mul output.0"]),
    ("a module inherits from what is inside", [
        "m input.0 PASS", "m output.0=m/mul>output.0 FAIL",
        "m/mul input.0=m>input.0 PASS", "m/mul output.0 FAIL",
    ], ["m/mul output.0"]),
    ("a module whose output nothing inside explains", [
        "m input.0 PASS", "m output.0 FAIL", "m/mul input.0=m>input.0 PASS", "m/mul output.0 PASS",
    ], ["m output.0"]),
    ("a child module that fails is the root, not its parent", [
        "m input.0 PASS", "m output.0 FAIL",
        "m.child input.0=m>input.0 PASS", "m.child output.0 FAIL",
    ], ["m.child output.0"]),
    ("a missing op", [
        "a/mul input.0 PASS", "a/mul output.0 PASS",
        "a/gelu input.0=a/mul>output.0 UNPAIRED golden", "a/gelu output.0 UNPAIRED golden",
        "b/add input.0=golden:a/gelu>output.0|target:a/mul>output.0 FAIL", "b/add output.0 FAIL",
    ], ["a/gelu output.0"]),
    ("a missing op that changes nothing", [
        "a/mul input.0 PASS", "a/mul output.0 PASS",
        "a/clone input.0=a/mul>output.0 UNPAIRED golden", "a/clone output.0 UNPAIRED golden",
        "b/add input.0=golden:a/clone>output.0|target:a/mul>output.0 PASS", "b/add output.0 PASS",
    ], []),
    ("an extra op", [
        "a/mul input.0 PASS", "a/mul output.0 PASS",
        "a/relu input.0=a/mul>output.0 UNPAIRED target", "a/relu output.0 UNPAIRED target",
        "b/add input.0=golden:a/mul>output.0|target:a/relu>output.0 FAIL", "b/add output.0 FAIL",
    ], ["a/relu output.0"]),
    ("two extra ops in a row are one root", [
        "a/mul input.0 PASS", "a/mul output.0 PASS",
        "a/relu input.0=a/mul>output.0 UNPAIRED target", "a/relu output.0 UNPAIRED target",
        "a/neg input.0=a/relu>output.0 UNPAIRED target", "a/neg output.0 UNPAIRED target",
        "b/add input.0=golden:a/mul>output.0|target:a/neg>output.0 FAIL", "b/add output.0 FAIL",
    ], ["a/relu output.0"]),
    ("another value taken than in golden", [
        "a/mul output.0 PASS", "a/neg output.0 PASS",
        "b/add input.0=golden:a/mul>output.0|target:a/neg>output.0 FAIL", "b/add output.0 FAIL",
    ], ["b/add input.0"]),
    ("a NaN is traced to its birth", [
        "a/div input.0 PASS", "a/div output.0 NONFINITE",
        "b/add input.0=a/div>output.0 NONFINITE", "b/add output.0 NONFINITE",
        "c/mul input.0=b/add>output.0 NONFINITE", "c/mul output.0 NONFINITE",
    ], ["a/div output.0"]),
    ("outputs alone: the first in order", ["a/mul output.0 PASS", "b/add output.0 FAIL",
                                           "c/neg output.0 FAIL"], ["b/add output.0"]),
    ("a gradient that its op's backward made wrong", [
        "a/mul input.0 PASS", "a/mul output.0 PASS", "a/mul grad_output.0 FAIL",
        "b/add input.0=a/mul>output.0 PASS", "b/add output.0 PASS",
        "b/add grad_input.0=a/mul>grad_output.0 FAIL", "b/add grad_output.0 PASS",
    ], ["b/add grad_input.0"]),
    ("a gradient handed on as it is in golden, and not in the target", [
        "a/mul output.0 PASS", "a/mul grad_output.0=golden:b/add>grad_output.0 FAIL",
        "b/add input.0=a/mul>output.0 PASS", "b/add output.0 PASS", "b/add grad_output.0 PASS",
        "b/add grad_input.0=golden:b/add>grad_output.0|target:a/mul>grad_output.0 FAIL",
    ], ["b/add grad_input.0"]),
    ("the same part taken twice: the gradient of one is wrong", [
        "a/get output.0 PASS", "a/get grad_output.0 PASS",
        "b/get output.0=a/get>output.0 PASS", "b/get grad_output.0 FAIL",
        "c/mul input.0=a/get>output.0 PASS", "c/mul grad_input.0=a/get>grad_output.0 PASS",
        "c/mul input.1=a/get>output.0 PASS", "c/mul grad_input.1=b/get>grad_output.0 FAIL",
        "c/mul output.0 PASS", "c/mul grad_output.0 PASS",
    ], ["c/mul grad_input.1"]),
    ("a function before its module", [
        "m input.0 PASS", "m grad_input.0=m/gelu>grad_input.0 FAIL",
        "m/gelu input.0=m>input.0 PASS", "m/gelu grad_input.0 FAIL",
        "m/gelu output.0 PASS", "m/gelu grad_output.0 PASS",
        "m output.0=m/gelu>output.0 PASS", "m grad_output.0=m/gelu>grad_output.0 PASS",
    ], ["m/gelu grad_input.0"]),
    ("a root of the forward pass that the gradient does not depend on", [
        "a/mul input.0 PASS", "a/mul output.0 FAIL",
        "b/gelu input.0 PASS", "b/gelu grad_input.0 FAIL",
        "b/gelu output.0 PASS", "b/gelu grad_output.0 PASS",
    ], ["a/mul output.0", "b/gelu grad_input.0"]),
    ("a value of the forward pass that the gradient is computed from", [
        "a/neg input.0 PASS", "a/neg output.0 FAIL", "a/neg grad_output.0 PASS",
        "b/mul input.0 PASS", "b/mul grad_input.0 FAIL",
        "b/mul input.1=a/neg>output.0 FAIL", "b/mul grad_input.1=a/neg>grad_output.0 PASS",
        "b/mul output.0 FAIL", "b/mul grad_output.0 PASS",
    ], ["a/neg output.0"]),
    ("an addition does not depend on its values", [
        "a/neg input.0 PASS", "a/neg output.0 FAIL", "a/neg grad_output.0 PASS",
        "b/add input.0 PASS", "b/add grad_input.0 FAIL", "b/add input.1=a/neg>output.0 FAIL",
        "b/add grad_input.1=a/neg>grad_output.0 PASS", "b/add grad_output.0 PASS",
    ], ["a/neg output.0", "b/add grad_input.0"]),
    ("a parameter's gradient, which is the function's", [
        "a input.0 PASS", "a grad.weight FAIL", "a/linear input.0 PASS", "a/linear input.1 PASS",
        "a/linear grad_input.1=a>grad.weight FAIL",
        "a/linear output.0 PASS", "a/linear grad_output.0 PASS",
    ], ["a/linear grad_input.1"]),
    ("what a later op's backward made wrong, parameters too", [
        "a input.0 PASS", "a grad.weight FAIL", "a/linear input.0 PASS", "a/linear input.1 PASS",
        "a/linear output.0 PASS", "a/linear grad_output.0=b/gelu>grad_input.0 FAIL",
        "b/gelu input.0=a/linear>output.0 PASS", "b/gelu grad_input.0 FAIL",
        "b/gelu output.0 PASS", "b/gelu grad_output.0 PASS",
    ], ["b/gelu grad_input.0"]),
    ("a gradient that only golden has", [
        "a/mul output.0 PASS", "a/mul grad_output.0=b/gelu>grad_input.0 UNPAIRED golden",
        "b/gelu input.0=a/mul>output.0 PASS", "b/gelu grad_input.0 UNPAIRED golden",
        "b/gelu output.0 PASS", "b/gelu grad_output.0 PASS",
    ], ["b/gelu grad_input.0"]),
    ("gradients inherit from the forward pass", [
        "a/mul input.0 PASS", "a/mul output.0 FAIL", "a/mul grad_output.0 FAIL",
    ], ["a/mul output.0"]),
]  # fmt: skip


@pytest.mark.parametrize("lines, roots", [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_the_root_is(lines: list[str], roots: list[str]) -> None:
    assert run(*lines).roots() == roots


def test_roots_are_told_in_the_order_of_the_backward_pass() -> None:
    made = run(
        "a/gelu input.0 PASS", "a/gelu grad_input.0 FAIL", "a/gelu output.0 PASS",
        "a/gelu grad_output.0=b/gelu>grad_input.0 PASS",
        "b/gelu input.0=a/gelu>output.0 PASS", "b/gelu grad_input.0 PASS",
        "b/gelu output.0 PASS", "b/gelu grad_output.0=c/gelu>grad_input.0 PASS",
        "c/gelu input.0=b/gelu>output.0 PASS", "c/gelu grad_input.0 PASS",
        "c/gelu input.1 PASS", "c/gelu grad_input.1 FAIL",
        "c/gelu output.0 PASS", "c/gelu grad_output.0 PASS",
        "d/neg input.0 PASS", "d/neg output.0 FAIL",
    )  # fmt: skip
    told = [row.key.op for row in in_order(row for row in made.blamed() if row.root)]
    assert told == ["d/neg", "c/gelu", "a/gelu"]


def test_every_heir_names_its_cause() -> None:
    made = run(
        "a/mul input.0 PASS", "a/mul output.0 FAIL",
        "b/add input.0=a/mul>output.0 FAIL", "b/add output.0 FAIL",
        "c/neg input.0=b/add>output.0 FAIL", "c/neg output.0 FAIL",
    )  # fmt: skip
    assert set(made.causes().values()) == {"a/mul"}
    assert len(made.causes()) == 4


def test_a_gradient_whose_op_is_right_inherits_through_what_agrees() -> None:
    """An op before it is wrong, by less than what the values between them are let pass for."""
    made = run(
        "a/mul input.0 PASS", "a/mul output.0 FAIL",
        "b/norm input.0=a/mul>output.0 PASS", "b/norm output.0 PASS",
        "b/norm grad_output.0 PASS", "b/norm grad_input.0 FAIL",
    )  # fmt: skip
    last = made.rows[-1]
    right = replace(last, judgement=replace(last.judgement, origin=Origin.AMPLIFIED))
    assert Written([*made.rows[:-1], right], made.golden, made.target).roots() == ["a/mul output.0"]
    assert made.roots() == ["a/mul output.0", "b/norm grad_input.0"]  # as long as nobody knows


def test_what_a_collective_moved_ends_no_module_of_another_class() -> None:
    """Its row has the target's name, whose class may be another, and golden's value."""
    made = run(
        "m input.0 PASS", "m output.0 FAIL", "m/cat output.0 PASS",
        "m/mul input.0=m>input.0 PASS", "m/mul output.0 FAIL",
    )  # fmt: skip
    moved = Key("OnRanks", 0, "m/all_gather", 0, "output.0")
    made.rows[2] = replace(made.rows[2], key=moved, golden_key=made.rows[0].key, target_key=moved)
    assert made.roots() == ["m/mul output.0"]
