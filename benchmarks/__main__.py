"""``python -m benchmarks [TABLE,...] [--tool NAME]``: print the benchmark tables as Markdown."""

import argparse
import os
import sys
from importlib import import_module

from benchmarks.tables import TABLES, Table


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("tables", nargs="*", help="tables to print, all without any")
    parser.add_argument("--tool", help="publicbugs: the one tool to run")
    chosen = parser.parse_args(words)
    if chosen.tool:
        os.environ["TOOL"] = chosen.tool
    names = [name for word in chosen.tables for name in word.split(",")]
    for name in names or list(TABLES):
        if name not in TABLES:
            sys.exit(f"no table {name!r}; there are: {', '.join(TABLES)}")
        table: Table = import_module(f"benchmarks.{TABLES[name]}").table()
        print(table.to_markdown(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
