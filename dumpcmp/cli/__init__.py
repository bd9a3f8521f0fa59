"""The command line: one small file per command, and the one place that prints errors."""

from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from keyword import iskeyword
from typing import Any

import click
from click.shell_completion import CompletionItem

from dumpcmp.cli.grouping import WIDEST
from dumpcmp.cli.trouble import told

# Command -> the line that `dumpcmp --help` shows; its code is imported only when it runs.
GROUPS: dict[str, dict[str, str]] = {
    "Find where two runs part": {
        "dump": "run a program and record what every op takes in and gives out",
        "compare": "hold a run against golden and say where it first goes wrong",
        "explain": "say all that is known of one value, and what it looks like",
        "bisect": "run two programs and compare the step in which they part",
        "repro": "cut the guilty op out into a folder that shows the fault alone",
        "graft": "put guilty ops right: what each of them costs, and what is left",
        "serve": "show a comparison as a live page, of any size, on this machine",
        "report": "make one HTML page of a report, which opens from disk",
        "map": "propose a mapping between two implementations of a model",
        "fusions": "list the fusions that a dump can turn off",
    },
    "Check a program by itself": {
        "check": "run a program and check every op against itself in float64",
        "verify": "hold a compiled model against the model itself",
        "verify-op": "hold partitions of an op against the op itself",
        "verify-graph": "hold every partition of every op of a graph against the op",
    },
    "Check what a program was given and what it gave": {
        "invariance": "run a model by other schedules, and compare rows bit by bit",
        "logprobs": "compare log probabilities of two engines, and say why they differ",
        "weights": "hold loaded weights against those of their checkpoint",
    },
    "Look into archives, keep and move them": {
        "show": "show what is in an archive",
        "golden": "keep a golden run as a small file, hold programs against it",
        "compact": "replace the tensors of an archive by small summaries",
        "audit": "check an archive against itself, and mend it",
        "import": "turn what other tools have dumped into an archive",
        "upload": "copy an archive into an object store, part by part",
    },
    "Begin": {
        "demo": "dump, break, compare and explain, on a model of dumpcmp's own",
        "mcp": "serve compare, explain, show and others to an assistant",
        "completion": "print what completes commands in bash, zsh or fish",
    },
}
COMMANDS = {name: line for group in GROUPS.values() for name, line in group.items()}


class Commands(click.Group):
    """A group whose commands are imported when they are asked for, so that help is instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        name = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name.replace("-", "_")
        module = import_module(f"dumpcmp.cli.{name}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = get_close_matches(args[0], COMMANDS, 1) if args[0] not in COMMANDS else []
        if near:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        width = max(len(name) for name in COMMANDS)  # `map` is a module here, once it is imported
        for heading, group in GROUPS.items():
            with formatter.section(heading):
                named = ((name.ljust(width), line) for name, line in group.items())
                formatter.write_dl(list(named))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the name of a command; no command is imported for that."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        found = (name for name in COMMANDS if name.startswith(incomplete))
        return [CompletionItem(name, help=COMMANDS[name]) for name in found]

    def main(self, args: Sequence[str] | None = None, *rest: Any, **options: Any) -> Any:
        """Run what `args` say. Without any, the process is the command's own, as `obj` tells it."""
        return super().main(args, *rest, obj=args is None, **options)

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        with told():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. What it returns is its verdict; whatever else ends it is none."""
        with told():
            verdict = super().invoke(ctx)
        ctx.exit(verdict or 0)


_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": WIDEST}


@click.command(cls=Commands, context_settings=_SETTINGS)
@click.version_option(package_name="dumpcmp")
def main() -> None:
    """Find the op where a compiled, partitioned or ported PyTorch model first goes wrong.

    Dump a golden run and a target run, then compare them. Every command exits with 0 for same,
    1 for different and 2 for trouble.
    """
