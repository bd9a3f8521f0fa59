"""``python -m benchmarks [TABLE,... ...]``: print the benchmark tables as Markdown."""

import sys
from importlib import import_module

from benchmarks.tables import TABLES, Table


def main(names: list[str]) -> None:
    for name in names or list(TABLES):
        if name not in TABLES:
            sys.exit(f"no table {name!r}; there are: {', '.join(TABLES)}")
        table: Table = import_module(f"benchmarks.{TABLES[name]}").table()
        print(table.to_markdown(), flush=True)


if __name__ == "__main__":
    main([name for word in sys.argv[1:] for name in word.split(",")])
