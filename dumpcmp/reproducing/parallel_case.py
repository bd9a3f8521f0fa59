"""The case of a repro that takes several ranks: each rank's inputs, and how their results join."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from dumpcmp.reproducing.case import ReproCase, ShownBy
from dumpcmp.reproducing.parallel_region import Join, RanksCode, ValuesByRank
from dumpcmp.reproducing.region import CodeRegion

_TOGETHER = "together({name}(*{inputs}))"


@dataclass(frozen=True, slots=True, eq=False)
class ParallelCase(ReproCase):
    """A fault in what ranks compute together; `values` are by rank, as ``1.x0``, or of all."""

    on_ranks: RanksCode | None = None  # mine, rank by rank
    golden_on_ranks: RanksCode | None = None  # golden's, where it ran on as many
    join: Join = field(default_factory=Join)
    keys: tuple[tuple[str, str], ...] = ()  # what each input is in the run, by variable
    free_sizes: frozenset[int] = frozenset()  # of dims that ranks have as golden has them

    @property
    def mine_on_ranks(self) -> RanksCode:
        assert self.on_ranks is not None
        return self.on_ranks

    @property
    def num_ranks(self) -> int:
        return len(self.mine_on_ranks.regions)

    @property
    def command(self) -> str:
        return f"torchrun --nproc-per-node {self.num_ranks} repro.py"

    @property
    def fresh(self) -> str:
        """What mine gives, as code."""
        return _TOGETHER.format(name="mine", inputs="inputs")

    @property
    def wrong(self) -> str:
        return (
            'values["recorded"]' if self.recorded is not None and self.is_recorded else self.fresh
        )

    @property
    def rights(self) -> tuple[str, ...]:
        if self.golden_on_ranks is not None:
            return _TOGETHER.format(name="golden", inputs="whole"), "expected"
        if self.golden is not None:
            return self.golden_call, "expected"
        return self.fresh, "expected"

    @property
    def golden_call(self) -> str:
        """Golden's code in each process, on the whole values."""
        alone = "golden(*whole)"
        return f"together({alone})" if self.join.is_of_replicas else alone

    @property
    def is_recorded(self) -> bool:
        return self.shown is ShownBy.RECORDED

    @property
    def compiles(self) -> bool:
        return False

    def ranks_values(self, code: RanksCode) -> dict[int, dict[str, Tensor]]:
        """What goes into `code`, of each rank by variable."""
        return {
            rank: {name: self.share(rank, name) for name in region.inputs}
            for rank, region in code.regions.items()
        }

    def share(self, rank: int, name: str) -> Tensor:
        """A rank's input, or the one that all have."""
        own = f"{rank}.{name}"
        return self.values[own if own in self.values else name]

    def right_value(self) -> Tensor:
        """What is right, in float64, as the ranks' results join."""
        if self.golden_on_ranks is not None:
            return right_of(
                self.golden_on_ranks, self.ranks_values(self.golden_on_ranks), self.join
            )
        if self.golden is not None:
            whole = self.golden.run(self.values)
            return self.join.of([whole] * self.num_ranks) if self.join.is_of_replicas else whole
        return right_of(self.mine_on_ranks, self.ranks_values(self.mine_on_ranks), self.join)

    def cut(self, size: int, kept: int) -> ParallelCase:
        """The same with `kept` in place of each dim of `size`, of all inputs and arguments."""
        values = {
            name: value[tuple(slice(0, kept if n == size else n) for n in value.shape)]
            for name, value in self.values.items()
        }

        def less(code: RanksCode | None) -> RanksCode | None:
            return None if code is None else code.with_number(size, kept)

        mine, golden = less(self.on_ranks), self.golden
        assert mine is not None
        golden = None if golden is None else golden.with_number(size, kept)
        smaller = replace(
            self, values=values, on_ranks=mine, mine=mine, golden=golden,
            golden_on_ranks=less(self.golden_on_ranks), recorded=None,
        )  # fmt: skip
        return replace(smaller, expected=smaller.right_value())


def right_of(code: RanksCode, values: ValuesByRank, join: Join) -> Tensor:
    """What `code` gives in float64, all ranks' results as one."""
    found = code.run_on_ranks(values)
    return join.of([found[rank] for rank in sorted(found)])


def flat(by_rank: ValuesByRank) -> dict[str, Tensor]:
    """Values of all ranks under one name each: ``1.x0``, or ``x0`` where all have the same."""
    names = dict.fromkeys(name for values in by_rank.values() for name in values)
    found: dict[str, Tensor] = {}
    for name in names:
        parts = [values[name] for values in by_rank.values() if name in values]
        if len(parts) == len(by_rank) and _are_same(parts):
            found[name] = parts[0]
        else:
            found |= {f"{rank}.{name}": v[name] for rank, v in by_rank.items() if name in v}
    return found


def _are_same(parts: Sequence[Tensor]) -> bool:
    first, *others = parts
    return all(
        each.shape == first.shape and each.dtype is first.dtype and each.equal(first)
        for each in others
    )


def named(regions: Mapping[int, CodeRegion]) -> tuple[tuple[str, str], ...]:
    """What each input of the first rank is called in the run."""
    first = regions[min(regions)]
    return tuple((name, f"{value.key.op}#{value.key.call} {value.key.slot}")
                 for name, value in first.inputs.items())  # fmt: skip
