"""``dumpcmp demo``: the whole job on the embedded model: dump, break, compare, explain."""

from pathlib import Path

import click

from dumpcmp.cli.places import PLACE
from dumpcmp.report.escaping import visible

_FAULTY = "layers.1.mlp.down_proj"


@click.command()
@click.option("--output", default="demo_out", show_default=True, type=PLACE,
              help="Directory for both dumps and the report.")  # fmt: skip
def command(output: Path) -> int:
    """Dump a small decoder, dump it again with a planted fault, and find the op that is wrong."""
    from rich.text import Text

    from dumpcmp import demo
    from dumpcmp.cli.compare import report
    from dumpcmp.comparing import compare
    from dumpcmp.comparing.showing import USUAL_CLOSE_UPS
    from dumpcmp.dumping.capturing import capture
    from dumpcmp.faults import Fault, on_output, planted, scale
    from dumpcmp.report.terminal import Screen

    console = Screen()
    golden, mine = output / "golden", output / "mine"
    fault = Fault("scaled by 1.01", _FAULTY, "linear", on_output(scale))
    model = demo.build()[0]

    def say(text: str, number: str = "") -> None:
        console.print(Text.assemble((number, "bold"), visible(text, keep="\n")))

    say(f"  dump the golden run to {golden}", "1")
    with capture(model, golden, overwrite=True):
        demo.generate(model)
    say(f"  dump it again to {mine}; {fault.op} now gives 1.01 times its result", "2")
    with planted(model, fault), capture(model, mine, overwrite=True):
        demo.generate(model)
    say(f"  dumpcmp compare --my-path {mine} --golden-path {golden}\n", "3")
    outcome = compare(golden, mine, closely=USUAL_CLOSE_UPS)
    report(outcome, output, ("csv", "html"), console)
    first = outcome.first_divergence
    if first is None or first.key.op != fault.op:
        say(f"The planted fault at {fault.op} was not found.")
        return 2
    say(f"\nThe planted fault was found at its op, {fault.op}. Next:")
    say(f"  dumpcmp explain {mine} {golden}   what the difference looks like")
    say(f"  dumpcmp show {mine}                        what a dump holds")
    say("  dumpcmp dump --path d1 your_script.py      dump your own program, golden first")
    say("  dumpcmp dump --mode compiled --path d2 your_script.py")
    say("  dumpcmp compare --my-path d2 --golden-path d1")
    return 0
