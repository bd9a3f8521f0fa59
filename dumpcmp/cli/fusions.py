"""``dumpcmp fusions``: the names that a switch file may turn off."""

import click


@click.command()
def command() -> int:
    """List the patterns and passes of Inductor that `dump --fusion-switch` can turn off.

    A switch file is JSON: {"Switch": {"GraphFusion": {"NAME": "off"}, "UBFusion": {"ALL": "off"}}}.
    GraphFusion are the names below, or ALL; UBFusion is the fusion of kernels, as a whole.
    """
    from dumpcmp.taps.inductor.switches import fusions

    found = fusions()
    for name, home in sorted(found.items(), key=lambda each: (each[1], each[0])):
        click.echo(f"{home:12} {name}")
    return 0
