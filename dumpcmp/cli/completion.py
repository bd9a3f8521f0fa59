"""``dumpcmp completion``: what a shell reads to complete commands, options and paths."""

import click
from click.shell_completion import CompletionItem, get_completion_class

from dumpcmp.nouns.errors import DumpcmpError

SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_DUMPCMP_COMPLETE"  # what click asks the environment for


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print what completes the commands and options of dumpcmp in a SHELL.

    \b
    bash: eval "$(dumpcmp completion bash)"    in ~/.bashrc; needs bash 4.4
    zsh:  eval "$(dumpcmp completion zsh)"     in ~/.zshrc, after compinit
    fish: dumpcmp completion fish | source     in ~/.config/fish/config.fish
    """
    made = get_completion_class(shell)
    if made is None:
        raise DumpcmpError(f"this click cannot complete in {shell}", hint="pip install -U click")
    main = click.get_current_context().find_root().command
    shown = made(main, {}, "dumpcmp", _VARIABLE)
    click.echo(shown.source_template % shown.source_vars())


def files(_ctx: click.Context, _option: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a program and its arguments: as files."""
    return [CompletionItem(incomplete, type="file")]
