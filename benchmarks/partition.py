"""Partition verification of single ops: verdicts and seconds, in process and on two ranks."""

from benchmarks.tables import Table
from dumpcmp.partitioning import Findings, PartitionConfig, check_partition_options
from dumpcmp.partitioning.crews import opened
from dumpcmp.partitioning.parts import Runner
from tests.partitioning.cases import LARGE, SMALL, WRONG


def table() -> Table:
    rows = []
    with opened("inprocess") as here, opened("gloo") as ranks:
        check_partition_options(SMALL["addmm"], backend=ranks)  # starts the ranks
        for name, config in {**SMALL, **LARGE, **WRONG}.items():
            rows.append([name, *_row(config, here, ranks)])
    return Table(
        "Partitions of single ops",
        ["configuration", "options", "in process", "s", "two gloo ranks", "s"],
        rows,
        "The single run, its float64 reference and a repetition are in the seconds in process; "
        "on ranks only the partitioned runs are. The last eight partitions are wrong.",
    )


def _row(config: PartitionConfig, here: Runner, ranks: Runner) -> list[str]:
    one, two = (check_partition_options(config, backend=backend) for backend in (here, ranks))
    return [
        ", ".join(str(dict(option)) for option in config.parti_options) or "none",
        _verdicts(one),
        f"{sum(row.seconds for row in one.rows):.2f}",
        _verdicts(two),
        f"{sum(row.seconds for row in two.rows if row.idx is not None):.2f}",
    ]


def _verdicts(found: Findings) -> str:
    parts = found.rows[1:] or found.rows
    return ", ".join(str(row.verdict) for row in parts)
