"""``dumpcmp demo``: the whole job on the embedded model: dump, break, compare, explain."""

import sys
from pathlib import Path

import click

_FAULTY = "layers.1.mlp.down_proj"


@click.command()
@click.option("--output", default="demo_out", show_default=True, type=click.Path(path_type=Path),
              help="Directory for both dumps and the report.")  # fmt: skip
def command(output: Path) -> None:
    """Dump a small decoder, dump it again with a planted fault, and find the op that is wrong."""
    from rich.console import Console

    from dumpcmp import demo
    from dumpcmp.cli.compare import report
    from dumpcmp.comparing import compare
    from dumpcmp.dumping.capturing import capture
    from dumpcmp.faults import Fault, on_output, planted, scale

    console = Console()
    golden, mine = output / "golden", output / "mine"
    fault = Fault("scaled by 1.01", _FAULTY, "linear", on_output(scale))
    say, model = console.print, demo.build()[0]
    say(f"[bold]1[/bold]  dump the golden run to {golden}")
    with capture(model, golden, overwrite=True):
        demo.generate(model)
    say(f"[bold]2[/bold]  dump it again to {mine}; {fault.op} now gives 1.01 times its result")
    with planted(model, fault), capture(model, mine, overwrite=True):
        demo.generate(model)
    say(f"[bold]3[/bold]  dumpcmp compare --my-path {mine} --golden-path {golden}\n")
    outcome = compare(golden, mine)
    report(outcome, output, ("csv",), console)
    first = outcome.first_divergence
    if first is None or first.key.op != fault.op:
        say(f"[bold red]The planted fault at {fault.op} was not found.[/bold red]")
        sys.exit(2)
    say(f"\nThe planted fault was found at its op, {fault.op}. Next:")
    say(f"  dumpcmp show {mine}                        what a dump holds")
    say("  dumpcmp dump --path d1 your_script.py      dump your own program, golden first")
    say("  dumpcmp dump --mode compiled --path d2 your_script.py")
    say("  dumpcmp compare --my-path d2 --golden-path d1")
