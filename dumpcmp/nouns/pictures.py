"""An outcome in pictures: its divergence curve and heat map, as SVG or by matplotlib."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any

from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.row import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_POINTS = 2_000  # of a curve in a notebook: of more, the worst of each stretch
_WIDTH, _HEIGHT = 720, 220
_CELL, _LEFT = 16, 150
_MOST_LAYERS, _MOST_TOKENS = 60, 60
_WITHIN, _BEYOND = "#9ecae1", ("#fdd064", "#ec7a14", "#b3280a", "#5a051e")


@dataclass(frozen=True, slots=True)
class Point:
    """One row of the curve."""

    place: int  # in order of execution
    error: float
    limit: float
    fails: bool
    root: bool
    name: str


@dataclass(slots=True)
class HeatCell:
    """One layer at one token: the largest error in units of the tolerance, and what fails."""

    worst: float = 0.0
    fails: int = 0


@dataclass(slots=True)
class Pictured:
    """What is drawn: points in order, and cells by layer and token."""

    points: list[Point] = field(default_factory=list)
    cells: dict[tuple[str, int], HeatCell] = field(default_factory=dict)

    @property
    def layers(self) -> list[str]:
        """The layers in order of appearance."""
        return list(dict.fromkeys(layer for layer, _ in self.cells))

    @property
    def tokens(self) -> list[int]:
        """The tokens in order."""
        return sorted({token for _, token in self.cells})


def pictured(rows: Sequence[Row]) -> Pictured:
    """Read what is to be drawn from `rows`, in one pass. Modules repeat what functions gave."""
    found = Pictured()
    limit = math.nan
    for place, row in enumerate(rows):
        limit = row.judgement.limit if row.judgement.limit > 0 else limit
        error = row.metrics.rel_l2 if row.metrics else math.nan
        fails = row.verdict.fails
        if not row.key.op.is_module or row.root:
            name = f"{row.key}: {row.verdict}"
            found.points.append(Point(place, error, limit, fails, row.root, name))
        layer = row.key.op.block or row.key.op.module.partition(".")[0]
        cell = found.cells.setdefault((layer, row.key.step), HeatCell())
        cell.fails += fails
        if limit > 0 and math.isfinite(error):
            cell.worst = max(cell.worst, error / limit)
    found.points = _thinned(found.points)
    return found


def _thinned(points: list[Point]) -> list[Point]:
    """At most MOST_POINTS: of each stretch the worst, and every root."""
    if len(points) <= MOST_POINTS:
        return points
    width = math.ceil(len(points) / MOST_POINTS)
    stretches = (points[start : start + width] for start in range(0, len(points), width))
    worst = [max(stretch, key=lambda p: (p.root, p.fails, p.error)) for stretch in stretches]
    roots = [point for point in points if point.root]
    return sorted({point.place: point for point in (*worst, *roots)}.values(), key=_place)


def _place(point: Point) -> int:
    return point.place


def as_svg(rows: Sequence[Row]) -> str:
    """Both pictures, beside each other where there is room; nothing where nothing was measured."""
    drawn = pictured(rows)
    if not drawn.points:
        return ""
    return f"<div>{''.join(_curve(drawn.points))}{''.join(_map(drawn))}</div>"


def _curve(points: Sequence[Point]) -> Iterator[str]:
    sizes = [math.log10(p.error) for p in points if 0 < p.error < math.inf]
    sizes += [math.log10(p.limit) for p in points if p.limit > 0]
    low, high = min(sizes, default=-8.0) - 0.5, max(sizes, default=0.0) + 0.5
    first, last = points[0].place, max(points[-1].place, points[0].place + 1)

    def x(place: int) -> float:
        return 46 + (place - first) / (last - first) * (_WIDTH - 56)

    def y(error: float) -> float:
        if not error < math.inf:
            return 10.0
        share = 0.0 if error <= 0 else (math.log10(error) - low) / (high - low)
        return _HEIGHT - 24 - max(0.0, share) * (_HEIGHT - 44)

    yield _svg(_WIDTH, _HEIGHT, "rel_l2 over the order of execution")
    for power in range(math.ceil(low), math.floor(high) + 1, max(1, round((high - low) / 6))):
        yield _text(40, y(10.0**power) + 4, f"1e{power}", "end")
    limits = [p for p in points if p.limit > 0]
    if limits:
        line = " ".join(f"{x(p.place):.1f},{y(p.limit):.1f}" for p in limits)
        ends = f"{x(limits[-1].place):.1f},{_HEIGHT - 24} {x(limits[0].place):.1f},{_HEIGHT - 24}"
        yield f'<polygon points="{line} {ends}" fill="{_WITHIN}" opacity="0.35"/>'
    for p in sorted(points, key=lambda p: p.root):
        colour = "#a40e26" if p.root else "#d55e00" if p.fails else "#0072b2"
        title = f"<title>{html.escape(p.name)}</title>"
        size = 5 if p.root else 2
        at = f'cx="{x(p.place):.1f}" cy="{y(p.error):.1f}"'
        yield f'<circle {at} r="{size}" fill="{colour}">{title}</circle>'
    yield "</svg>"


def _map(drawn: Pictured) -> Iterator[str]:
    layers, tokens = drawn.layers[:_MOST_LAYERS], drawn.tokens[:_MOST_TOKENS]
    wide, high = _LEFT + _CELL * len(tokens) + 10, 22 + _CELL * len(layers)
    yield _svg(wide, high, "the largest error of each layer at each token")
    for column, token in enumerate(tokens):
        yield _text(_LEFT + (column + 0.5) * _CELL, 14, str(token), "middle")
    for line, layer in enumerate(layers):
        top = 20 + line * _CELL
        yield _text(_LEFT - 6, top + 12, layer, "end")
        for column, token in enumerate(tokens):
            cell = drawn.cells.get((layer, token))
            if cell is not None:
                yield _cell(cell, _LEFT + column * _CELL, top, f"{layer}, token {token}")
    yield "</svg>"


def _cell(cell: HeatCell, x: int, y: int, name: str) -> str:
    said = html.escape(f"{name}: {cell.worst:.3g} times the tolerance, {cell.fails} fail")
    size = _CELL - 1
    box = f'<rect x="{x}" y="{y}" width="{size}" height="{size}" fill="{heat(cell)}">'
    cross = _text(x + _CELL / 2, y + 12, "×", "middle", "#000") if cell.fails else ""
    return f"{box}<title>{said}</title></rect>{cross}"


def heat(cell: HeatCell) -> str:
    """Blue within the tolerance, from yellow to dark red beyond it."""
    if cell.worst <= 1 and not cell.fails:
        return _WITHIN
    step = math.log10(cell.worst) / 2 if cell.worst > 1 else 0
    return _BEYOND[min(len(_BEYOND) - 1, int(step))]


def _svg(width: float, height: float, label: str) -> str:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">'


def _text(x: float, y: float, text: str, anchor: str, colour: str = "currentColor") -> str:
    shown = html.escape(text)
    at = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {at} font-size="11" fill="{colour}">{shown}</text>'


def as_figure(rows: Sequence[Row], title: str) -> Figure:
    """Both pictures as a figure of matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise DumpcmpError(
            "plot() draws with matplotlib, which is not installed",
            hint="pip install 'dumpcmp[plot]'",
        ) from error

    class ShownFigure(Figure):  # type: ignore[misc]
        """A figure that a notebook shows, whether or not pyplot is there to do so."""

        def _repr_png_(self) -> bytes:
            written = BytesIO()
            self.savefig(written, format="png")
            return written.getvalue()

    drawn = pictured(rows)
    figure = ShownFigure(figsize=(11, 4.2), layout="constrained")
    curve, grid = figure.subplots(1, 2, width_ratios=(3, 1))
    figure.suptitle(title if len(title) < 120 else f"{title[:117]}...", fontsize=9)
    _plot_curve(curve, drawn.points)
    _plot_map(grid, drawn)
    return figure


def _plot_curve(axes: Any, points: Sequence[Point]) -> None:
    kinds = {
        "does not fail": ([p for p in points if not p.fails], "#0072b2", "."),
        "fails": ([p for p in points if p.fails and not p.root], "#d55e00", "."),
        "root": ([p for p in points if p.root], "#a40e26", "D"),
    }
    axes.set_yscale("symlog", linthresh=1e-9)
    limits = [p for p in points if p.limit > 0]
    axes.fill_between(
        [p.place for p in limits], [p.limit for p in limits], color=_WITHIN, alpha=0.35,
        label="tolerance",
    )  # fmt: skip
    for name, (some, colour, mark) in kinds.items():
        axes.plot([p.place for p in some], [p.error for p in some], mark, color=colour, label=name)
    axes.set_xlabel("order of execution")
    axes.set_ylabel("rel_l2")
    axes.legend(fontsize=8)


def _plot_map(axes: Any, drawn: Pictured) -> None:
    layers, tokens = drawn.layers, drawn.tokens
    table = [[_log(drawn.cells.get((layer, token))) for token in tokens] for layer in layers]
    image = axes.imshow(table, aspect="auto", cmap="cividis", vmin=-4, vmax=6)
    axes.set_yticks(range(len(layers)), layers, fontsize=7)
    axes.set_xlabel("token")
    axes.figure.colorbar(image, ax=axes, label="log10(error / tolerance)")


def _log(cell: HeatCell | None) -> float:
    if cell is None:
        return math.nan
    return math.log10(cell.worst) if cell.worst > 1e-4 else -4.0
