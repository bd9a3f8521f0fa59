"""The short answer: coverage, the first divergence with its numbers, the worst rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dumpcmp.nouns.effects import Effect, effect_of
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.outcome import Outcome
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.row import Extent, Metrics, Row, Verdict, Why
from dumpcmp.nouns.rows import held_by, num_heirs, suspects
from dumpcmp.nouns.spoken import counted, plural
from dumpcmp.report.contrasts import contrasts
from dumpcmp.report.decisions import agreements, decisions
from dumpcmp.report.escaping import visible
from dumpcmp.report.kernel_sources import kernel_source

_UNBROKEN = 100_000  # columns
_WORST = 10
_MOST_ROOTS = 5
_MOST_DECISIONS = 5
_MOST_CONTRASTS = 8
_STYLES = {
    Verdict.PASS: "green",
    Verdict.FLIP: "yellow",
    Verdict.DTYPE: "yellow",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.FUSED: "dim",
}


class Screen(Console):
    """Where commands print; in a pipe or file no line is broken, since nobody has a width there."""

    def __init__(self, *, stderr: bool = False, soft_wrap: bool = False) -> None:
        super().__init__(stderr=stderr, soft_wrap=soft_wrap, markup=False)
        if not self.is_terminal:
            self.width = _UNBROKEN

    def on_broken_pipe(self) -> None:
        """Leave it to the command: rich would exit with 1, which means different."""
        raise


class Hanging:
    """A line of text whose further lines, where it is wrapped, begin below its first word."""

    def __init__(self, text: Text) -> None:
        self._indent = len(text.plain) - len(text.plain.lstrip(" "))
        self._text = text[self._indent :]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        if options.no_wrap or not self._text.plain:
            yield Text(" " * self._indent) + self._text
            return
        room = max(1, options.max_width - self._indent)
        for line in self._text.wrap(console, room):
            line.rstrip()
            yield Text(" " * self._indent) + line


def plain(text: str, style: str = "") -> Text:
    """`text` as it stands: no markup and no control character of a name means anything."""
    return Text(visible(text), style)


def show(outcome: Outcome, console: Console, files: Sequence[str] = ()) -> None:
    """Print the summary of `outcome`; `files` are where the whole report is."""
    console.print(summary(outcome))
    console.print()
    for file in files:  # readers copy these: the terminal may wrap them, and we break none
        console.print(plain(f"report: {file}"), soft_wrap=True)


def summary(outcome: Outcome) -> Group:
    """The answer first, then what supports it."""
    style = "bold green" if outcome.passed else "bold red"
    parts: list[RenderableType] = [plain(outcome.word, style), *_coverage(outcome)]
    parts += [plain(f"note: {remark}", "yellow") for remark in outcome.remarks]
    first = outcome.first_divergence
    if first is not None:
        parts += [Text(), *_divergence(outcome, first), *_further(outcome)]
    if differing := contrasts(outcome):
        parts += [Text(), *_contrasts(differing)]
    if decided := list(_decisions(outcome)):
        parts += [Text(), *decided]
    if worst := _worst(outcome.rows):
        parts += [Text(), _table(worst)]
    return Group(*(Hanging(part) if isinstance(part, Text) else part for part in parts))


def _contrasts(differing: Sequence[str]) -> Iterable[Text]:
    yield Text("Besides their values, the runs differ in this:", style="bold")
    yield from (plain(f"  {line}") for line in differing[:_MOST_CONTRASTS])
    if len(differing) > _MOST_CONTRASTS:
        yield Text(f"  and {len(differing) - _MOST_CONTRASTS} more, in the page (--format html)")


def _decisions(outcome: Outcome) -> Iterable[Text]:
    """Who chose otherwise, how often, and what came of it."""
    found, agreed = decisions(outcome), agreements(outcome)
    if found:
        yield Text(f"Decisions that differ: {counted(len(found), 'op')}", style="bold")
    for decision in found[:_MOST_DECISIONS]:
        share = agreed.get(decision.site.op)
        shown = "" if share is None else f"  {100 * share:.2f} % of the rows agree"
        yield plain(f"  {decision.site.op}#{decision.site.call}, token {decision.site.step}{shown}")
        yield from (plain(f"    {sentence}") for sentence in decision.sentences)
    if len(found) > _MOST_DECISIONS:
        yield Text(f"  and {len(found) - _MOST_DECISIONS} more, FLIP in the report")


def _coverage(outcome: Outcome) -> Iterable[Text]:
    """How much of each side was held against the other."""
    held = held_by(outcome.rows)
    for name in ("golden", "mine"):
        total, paired = held[name], held[f"{name} paired"]
        share = f" ({100 * paired / total:.1f} %)" if total else ""
        yield Text(f"  {name:6}  {paired} of {counted(total, 'value')} paired{share}")
    line = Text("  verdict ")
    for verdict, count in outcome.tally.counts.items():
        line.append(f" {count} {verdict.value}", style=_STYLES.get(verdict, "red"))
    yield line


def _divergence(outcome: Outcome, row: Row) -> Iterable[RenderableType]:
    key = row.key
    yield Text.assemble(
        ("First divergence: ", "bold"),
        plain(key.op, "bold red"),
        plain(f" (call {key.call}, token {key.step}, {key.slot})"),
        plain(f"  {row.source}" if row.source else ""),
    )
    yield Text(f"  {_why(outcome, row)}")
    yield plain(f"  {row.verdict.value}: {row.reason}")
    if row.replay is not None and (parts := _parts(row.replay)):
        yield Text(f"  {parts}")
    if row.metrics is not None:
        yield Text(f"  {_numbers(row)}")
        yield Padding(_sides(row), (0, 0, 0, 2), expand=False)
    yield from _kernel(outcome, row)
    heirs = num_heirs(outcome.rows, key)
    if heirs:
        inherit = plural(heirs, "row after it only inherits", "rows after it only inherit")
        yield Text(f"  {heirs} failing {inherit} from it")


def _kernel(outcome: Outcome, row: Row) -> Iterable[Text]:
    """The kernel that computes it, where its source is, and the lines of it that are meant."""
    if not row.kernel:
        return
    source = kernel_source(outcome, row)
    if source is None:
        yield plain(f"  kernel {row.kernel}")
        return
    yield plain(f"  kernel {row.kernel}, generated in {source.file}:{source.meant}")
    for number, line in source.excerpt(_MOST_CODE):
        mark = ">" if number == source.meant else " "
        yield plain(f"    {mark}{number:5}  {line}")


_MOST_CODE = 16  # lines of a kernel
_MOST_ROWS = 200_000  # that are looked at for the inputs of a call
_WHYS = {
    Why.LEAF: "this input or weight already differed before any recorded op ran",
    Why.CALL: "what it was given agrees, but the two sides do not call it in the same way",
    Why.WIRED: "my side gives this op another value than golden gives to it",
    Why.EFFECT: "everything before it agrees, and this is what the runs left behind",
    Why.GOLDEN: "in float64, on golden's own inputs, golden's op gives something else",
    Why.INTRODUCED: "in float64, on what my side was given, golden's op gives something else",
}


_BETWEEN_STEPS = (
    "no recorded op computed it: it changed between the tokens, as by an optimizer, clipping of "
    "gradients, a schedule or a loader"
)
_STEERED = "everything before it agrees, and from here on training is steered in another way"
_BY_OPTIMIZER = "golden's optimizer makes something else of my side's gradients, and of its weights"


def _why(outcome: Outcome, row: Row) -> str:
    if row.replay is not None and row.replay.num_ops == 0:
        return _BY_OPTIMIZER
    if row.judgement.why is Why.LEAF and row.key.slot.is_weight and row.key.step:
        return _BETWEEN_STEPS
    if effect_of(row.key.op) is Effect.TRAINING:
        return _STEERED
    if row.judgement.why in _WHYS:
        return _WHYS[row.judgement.why]
    if row.golden_key is None:
        return "only my side runs this op; what it was given agrees, what takes its output does not"
    if row.target_key is None:
        return "my side does not run this op; what follows it in golden disagrees"
    if row.key.slot.is_input:
        return "this value came in from outside the model, or from nowhere that was recorded"
    if not _has_inputs(outcome, row.key):
        return "its inputs were not recorded: nothing that was recorded before it differs"
    return "its inputs agree and its output does not: this op introduced the difference"


def _has_inputs(outcome: Outcome, key: Key) -> bool:
    """Whether anything that this call was given was compared; it stands near the call's outputs."""
    rows = islice(outcome.rows, _MOST_ROWS)
    return any(row.key.slot.is_input and row.key.site == key.site for row in rows)


def _parts(replay: Replay) -> str:
    """What of the difference is the op's own, and what it was given, where that is known."""
    shares = {"introduced": replay.introduced, "inherited": replay.inherited}
    parts = [f"{name} {share:.3g}" for name, share in shares.items() if not math.isnan(share)]
    if replay.amplification > 1:
        parts.append(f"amplified {replay.amplification:.3g} times")
    if replay.condition > 1:
        parts.append(f"condition {replay.condition:.3g}")
    return ", ".join(parts)


def _numbers(row: Row) -> str:
    """The numbers that there are: of Summaries nobody knows where elements differ most."""
    metrics = row.metrics
    assert metrics is not None
    numbers = {
        "rel_l2": f"{metrics.rel_l2:.3g}",
        "cosine": f"{metrics.cosine:.6f}",
        "max_abs_diff": f"{metrics.max_abs_diff:.3g}{place_of(metrics)}",
        "max_rel_err": f"{metrics.max_rel_err:.3g}",
        "max_ulp": f"{metrics.max_ulp:.3g}",
    }
    return ", ".join(f"{name} {told}" for name, told in numbers.items() if told != "nan")


def place_of(metrics: Metrics) -> str:
    """Where the largest difference is, if that is known."""
    return f" at {list(metrics.worst)}" if metrics.worst else ""


def _sides(row: Row) -> Table:
    assert row.metrics is not None
    table = Table("", "dtype", "shape", "min", "max", "mean", "norm", "NaN", "Inf", box=None)
    sides = (
        ("golden", row.golden_dtype, row.golden_shape, row.metrics.golden),
        ("mine", row.target_dtype, row.target_shape, row.metrics.target),
    )
    for name, dtype, shape, extent in sides:
        table.add_row(name, plain(dtype), str(list(shape or ())), *_extent(extent))
    return table


def _extent(extent: Extent) -> list[str]:
    numbers = (extent.min, extent.max, extent.mean, extent.norm)
    return [*(f"{n:.4g}" for n in numbers), str(extent.num_nan), str(extent.num_inf)]


def _further(outcome: Outcome) -> Iterable[Text]:
    further = outcome.roots[1:]
    if further:
        yield Text(f"Further roots, which do not follow from it: {len(further)}", style="bold")
    for row in further[:_MOST_ROOTS]:
        key = row.key
        yield plain(f"  token {key.step}  {key.op}#{key.call} {key.slot}  {row.reason}")
    if len(further) > _MOST_ROOTS:
        yield Text(f"  and {len(further) - _MOST_ROOTS} more, with root = True in the report")


def _worst(rows: Sequence[Row]) -> list[Row]:
    """The failing rows that do not only inherit, each value once, largest relative error first."""
    worst: list[tuple[float, Row]] = []
    for badness, read in suspects(rows):
        if len(worst) == _WORST and badness < worst[-1][0]:
            continue
        row = read()
        same = next((at for at, (_, one) in enumerate(worst) if one.metrics is row.metrics), None)
        if same is None:
            worst.append((badness, row))
        elif row.root and not worst[same][1].root:  # it repeats
            worst[same] = badness, row
        worst = sorted(worst, key=itemgetter(0), reverse=True)[:_WORST]
    return [row for _, row in worst]


def _table(rows: Sequence[Row]) -> Table:
    table = Table(box=None, title="Worst values", title_justify="left", pad_edge=False)
    table.add_column("token", justify="right")
    for heading in ("rel_l2", "cosine", "verdict"):
        table.add_column(heading, no_wrap=True)
    table.add_column("value", overflow="fold")
    for row in rows:
        assert row.metrics is not None
        role = ", root" if row.root else ""
        table.add_row(
            str(row.key.step),
            f"{row.metrics.rel_l2:.3g}",
            f"{row.metrics.cosine:.6f}",
            Text(row.verdict.value + role, style=_STYLES.get(row.verdict, "red")),
            plain(f"{row.key.op}#{row.key.call} {row.key.slot}"),
        )
    return table
