"""The truth table as rows, and the list of everything that is not as it should be."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.truth.asking import GRADES, Graded
from benchmarks.truth.corpus import Benign, Broken, Case, Found

HEADINGS = (
    "models", "dtype", "way", "faults", "detectable",
    "exact", "near", "wrong", "a remark", "missed",
    "of the others: named", "false alarms", "compare",
)  # fmt: skip


def fault_rows(cases: Sequence[Case], by_kind: bool) -> list[list[str]]:
    """A row for each dtype and way, and kind of model if asked; and one for all."""
    groups: dict[tuple[str, str, str], list[Found]] = defaultdict(list)
    found = [case for case in cases if isinstance(case, Found)]
    for case in found:
        kind = case.place.kind if by_kind else "six kinds"
        groups[kind, case.place.dtype, case.place.way].append(case)
    rows = [[*place, *_counts(some, lambda one: one.graded)] for place, some in groups.items()]
    totals = [
        [f"all, {name}", "", "", *_counts([one for one in found if is_one(one)], _full)]
        for name, is_one in _PHASES.items()
    ]
    return [*rows, *totals]


_PHASES: dict[str, Callable[[Found], bool]] = {
    "forward": lambda one: not one.in_gradient,
    "gradients": lambda one: one.in_gradient,
}


def _full(one: Found) -> Graded:
    return one.graded


def _counts(some: list[Found], graded: Callable[[Found], Graded]) -> list[str]:
    sure = [one for one in some if one.is_sure]
    grades = Counter(graded(one).grade for one in sure)
    rest = sum(graded(one).grade in ("exact", "near") for one in some if one not in sure)
    others = sum(bool(graded(one).elsewhere) and graded(one).grade == "exact" for one in some)
    spent = sum(graded(one).seconds for one in some) / max(1, len(some))
    return [
        str(len(some)), str(len(sure)), *(str(grades[word]) for word in GRADES),
        f"{rest} of {len(some) - len(sure)}", str(others), f"{spent:.2f} s",
    ]  # fmt: skip


def compacted_rows(cases: Sequence[Case]) -> list[list[str]]:
    """The same faults on archives of Summaries."""
    found = [one for one in cases if isinstance(one, Found) and one.compacted is not None]
    if not found:
        return []
    return [["all, compacted", "", "", *_counts(found, lambda one: one.compacted or one.graded)]]


def benign_rows(cases: Sequence[Case]) -> list[list[str]]:
    """A row for each dtype and way: the pairs that alarm, of all."""
    groups: dict[tuple[str, str], list[Benign]] = defaultdict(list)
    for case in cases:
        if isinstance(case, Benign):
            groups[case.place.dtype, case.place.way].append(case)
    return [
        [f"{len(some)} benign pairs", *place, *[""] * 8, _alarming(some),
         f"{sum(one.seconds for one in some) / len(some):.2f} s"]
        for place, some in groups.items()
    ]  # fmt: skip


def _alarming(some: list[Benign]) -> str:
    alarms = [one for one in some if one.is_alarm]
    forward = sum(one.forward > 0 for one in alarms)
    return f"{len(alarms)} ({forward} forward)" if alarms else "0"


def failures(cases: Iterable[Case]) -> str:
    """Every case that is not as it should be, with what the product said."""
    lines = [line for case in cases for line in failure(case)]
    return "\n".join(lines) + "\n"


def failure(case: Case) -> list[str]:
    """What is not as it should be in one case."""
    match case:
        case Broken():
            return [f"BROKEN       {case.place}\n    {case.said}"]
        case Benign() if case.is_alarm:
            rows = f"{case.forward} rows forward, {case.gradients} gradients"
            return [f"FALSE ALARM  {case.place}: {rows}\n    {case.told}"]
        case Found():
            small = case.compacted
            more = [] if small is None else _failure(case, small, " (compacted)")
            return [*_failure(case, case.graded, ""), *more]
    return []


def _failure(case: Found, graded: Graded, note: str) -> list[str]:
    is_fine = graded.grade in ("exact", "remark") and not graded.elsewhere
    if is_fine or (not case.is_sure and graded.grade in ("missed", "exact", "near")):
        return []
    word = {"exact": "MORE ROOTS", "near": "NEAR", "wrong": "WRONG OP", "missed": "MISSED"}
    place = f"{case.place}: {case.fault} at {', '.join(case.ops)}"
    seen = f"planted: {case.evidence}{'' if case.is_sure else ' (below the bound)'}"
    others = f"{len(graded.elsewhere)} roots elsewhere ({', '.join(graded.elsewhere[:3])})"
    besides = (
        f"; {others if graded.elsewhere else 'no other root'}, {graded.early} rows fail before"
    )
    told = f"said: {graded.told}{besides}"
    return [f"{word[graded.grade]:12} {place}{note}\n    {seen}\n    {told}"]


def written(cases: Iterable[Case], name: str) -> tuple[list[Case], Path]:
    """The cases; what fails of them is under out/ as soon as it is known."""
    path, kept = Path("out", f"{name}.txt"), []
    path.parent.mkdir(exist_ok=True)
    with path.open("w") as file:
        for case in cases:
            kept.append(case)
            file.writelines(f"{line}\n" for line in failure(case))
            file.flush()
    return kept, path
