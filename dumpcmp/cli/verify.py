"""``dumpcmp verify``: hold a compiled model against the model itself, in one command."""

from typing import TYPE_CHECKING, Any

import click

from dumpcmp.report.escaping import visible

if TYPE_CHECKING:  # torch is imported when there is something to run, not for --help
    from torch import nn


@click.command()
@click.option("--model", "factory", metavar="PKG:FUNC",
              help="FUNC returns the model and its inputs; without it, the demo.")  # fmt: skip
@click.option("--backend", default="inductor", show_default=True,
              help="Backend of torch.compile to verify.")  # fmt: skip
@click.option("--option", "config", metavar="NAME=VALUE", multiple=True,
              help="An option of the backend, such as max_autotune=true. May be given "
              "again.")  # fmt: skip
@click.option("--backward", is_flag=True, help="Compare gradients too.")
@click.option("--reference", type=click.Choice(["float64"]),
              help="Run golden in this precision too, and refer both sides to it.")  # fmt: skip
@click.option("--checker", default="auto", show_default=True, metavar="NAME",
              help="auto (rounding), allclose, full, pcc, cosine, exact, fp64.")  # fmt: skip
@click.option("--rtol", type=float, help="Relative tolerance of an element.")
@click.option("--atol", type=float, help="Absolute tolerance of an element.")
@click.option("--pcc", type=float, help="Least correlation (pcc, full).")
@click.option("--cosine", type=float, help="Least cosine (cosine).")
@click.option("--explain", "explains", is_flag=True,
              help="Where they differ, dump both sides and name the op.")  # fmt: skip
def command(
    factory: str | None, backend: str, config: tuple[str, ...], backward: bool, reference: Any,
    checker: str, explains: bool, **tolerances: float | None,
) -> int:  # fmt: skip
    """Compile a model with torch.compile, run both on the same inputs, and compare every value.

    Exits with 0 where they are the same, 1 where they differ, 2 where there was trouble.
    """
    import torch

    from dumpcmp.explaining import explain
    from dumpcmp.judge import checker_named
    from dumpcmp.pytorch.inductor_options import parse_options
    from dumpcmp.taps.modes.boundary import backend_named, with_options
    from dumpcmp.verifying import NEXT, VerifyConfig, report_on

    checks = VerifyConfig(
        value_checker=checker_named(checker, tolerances), backward=backward, reference=reference
    )
    model, inputs = chosen_model(factory)
    compiler = with_options(backend_named(backend), backend, parse_options(config))
    compiled = torch.compile(model, backend=compiler)
    report = report_on(inputs, model, compiled, checks)
    click.echo(visible(report.text(), keep="\n"))
    if not report:
        told = repr(explain(inputs, model, compiled)) if explains else f"  {NEXT}"
        click.echo(visible(told, keep="\n"))
    return report.exit_code


def chosen_model(factory: str | None) -> "tuple[nn.Module, Any]":
    """The model that the command line names, or the demo, and its inputs."""
    if factory is None:
        from dumpcmp.demo import build

        return build()
    from dumpcmp.dumping.programs import built

    model, args, kwargs = built(factory)
    return model, kwargs or args
