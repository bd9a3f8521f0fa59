"""Random programs and edited copies of them: what pairs is right wherever the truth is known.

A program is a list of calls, each of which names itself by an identity that no name shows. The copy
has calls left out, others put in, modules renamed and independent calls in another order.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from dumpcmp.align.listing import Listing
from dumpcmp.align.pairing import pair_values
from dumpcmp.align.renaming import Renaming, parse_rule
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.record import Call, Record

FUNCTIONS = ("mul", "add", "linear", "softmax", "gelu", "cat", "sub")
SHAPES = ((2, 4), (4, 4), (2, 8))


@dataclass(frozen=True)
class Step:
    """One call: who it is, in which module, of which function, and whose results it takes."""

    identity: int
    module: str
    function: str
    takes: tuple[int, ...]
    shape: tuple[int, ...]


def program(seed: int, length: int) -> list[Step]:
    """A random program; call 0 is the input of the model."""
    draw = random.Random(seed)
    return [
        Step(
            n,
            f"layers.{n // 6}",
            draw.choice(FUNCTIONS),
            tuple(draw.sample(range(max(0, n - 5), n), min(n, draw.choice((1, 2, 2))))),
            draw.choice(SHAPES),
        )
        for n in range(1, length)
    ]


def edited(steps: list[Step], seed: int, share: float) -> list[Step]:
    """A copy in which some calls are passed by, others are new, and neighbours change places."""
    draw = random.Random(seed)
    stands_for = {0: 0}
    found: list[Step] = []
    for step in steps:
        takes = tuple(stands_for[n] for n in step.takes)
        if draw.random() < share / 2 and len(takes) == 1:  # left out: what follows takes its input
            stands_for[step.identity] = takes[0]
            continue
        if draw.random() < share / 2:
            new = 10_000 + step.identity
            found.append(Step(new, step.module, draw.choice(FUNCTIONS), takes[:1], step.shape))
        found.append(Step(step.identity, step.module, step.function, takes, step.shape))
        stands_for[step.identity] = step.identity
    for n in range(len(found) - 1):
        one, other = found[n], found[n + 1]
        apart = one.identity not in other.takes and one.module == other.module
        if apart and draw.random() < share:
            found[n], found[n + 1] = other, one
    return found


def listed(steps: list[Step], digests: str, prefix: str = "") -> tuple[Listing, dict[Key, int]]:
    """The run of a program, and the identity of each output; `digests` tell runs apart."""
    numbers: Counter[str] = Counter()
    start = Key("M", 0, "<root>", 0, "input.0")
    values = {start: (Record(start, 0, "float32", SHAPES[0], digest="given"),)}
    made, calls, identities = {0: start}, {}, {}
    for order, step in enumerate(steps, 1):
        op = f"{prefix}{step.module}/{step.function}"
        call, numbers[op] = numbers[op], numbers[op] + 1
        for n, taken in enumerate(step.takes):
            key = Key("M", 0, op, call, f"input.{n}")
            values[key] = (Record(key, order, "float32", step.shape, same_as=made[taken]),)
        key = Key("M", 0, op, call, "output.0")
        digest = f"{digests}{step.identity}"
        values[key] = (Record(key, order, "float32", step.shape, digest=digest),)
        calls[key.site] = Call("M", 0, key.op, call, order)
        made[step.identity], identities[key] = key, step.identity
    return Listing(values, calls), identities


def paired(seed: int, share: float, same_bits: bool, prefix: str = "") -> tuple[int, int, int]:
    """How many outputs could pair, how many do, and how many rightly."""
    steps = program(seed, 60)
    golden, ours = listed(steps, "")
    target, theirs = listed(edited(steps, seed + 1, share), "" if same_bits else "~", prefix)
    rules = (parse_rule("layers.*", f"{prefix}layers.*"),) if prefix else ()
    pairs = pair_values(golden, target, Renaming(rules))
    both = [(p.golden, p.target) for p in pairs if p.golden in ours and p.target in theirs]
    right = sum(ours[one] == theirs[other] for one, other in both if one and other)
    used = {key for p in pairs for key in (p.golden, p.target) if key is not None}
    assert used == {*golden.values, *target.values}, "every value is in a pair"
    return len(set(ours.values()) & set(theirs.values())), len(both), right


@given(st.integers(0, 10_000), st.booleans(), st.sampled_from(["", "net."]))
@settings(max_examples=40, deadline=None)
def test_a_copy_without_edits_pairs_wholly_and_rightly(
    seed: int, same_bits: bool, prefix: str
) -> None:
    possible, found, right = paired(seed, 0.0, same_bits, prefix)
    assert possible == found == right


@given(st.integers(0, 10_000), st.booleans(), st.sampled_from(["", "net."]))
@settings(max_examples=40, deadline=None)
def test_edits_leave_most_pairs_right(seed: int, same_bits: bool, prefix: str) -> None:
    _, found, right = paired(seed, 0.1, same_bits, prefix)
    assert right >= 0.75 * found


def test_of_many_programs_nearly_all_pairs_are_right() -> None:
    sums = [paired(seed, 0.1, seed % 2 == 0, ("", "net.")[seed % 3 == 0]) for seed in range(60)]
    possible, found, right = (sum(one[n] for one in sums) for n in range(3))
    assert right >= 0.98 * found, (possible, found, right)
    assert right >= 0.95 * possible, (possible, found, right)
