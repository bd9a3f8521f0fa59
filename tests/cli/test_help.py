"""Every command explains itself, and importing dumpcmp does nothing and brings no torch."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import dumpcmp
from dumpcmp.cli import COMMANDS, GROUPS, main
from dumpcmp.cli.completion import SHELLS
from dumpcmp.cli.grouping import Grouped, name_of
from tests.cli.shells import completed


def test_help_lists_every_command() -> None:
    shown = CliRunner().invoke(main, ["--help"])
    assert shown.exit_code == 0
    assert all(name in shown.output for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    shown = CliRunner().invoke(main, [name, "--help"])
    assert shown.exit_code == 0, shown.output
    assert f"{name} [OPTIONS]" in shown.output
    text = shown.output.split("\n", 2)[2]
    assert text.strip().split("\n")[0].strip(), "the help begins with a sentence"


def test_every_command_is_one_line_at_80_columns() -> None:
    shown = CliRunner().invoke(main, ["--help"], terminal_width=80).output.splitlines()
    lines = [line for line in shown if line.strip().split(" ")[0] in COMMANDS]
    assert [line.split()[0] for line in lines] == list(COMMANDS)
    assert max(map(len, shown)) <= 80
    assert [heading for heading in GROUPS if f"{heading}:" not in shown] == []


@pytest.mark.parametrize("name", ["compare", "dump"])
def test_help_has_every_option_once_and_in_a_group(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert isinstance(command, Grouped)
    grouped = [option for group in command.groups.values() for option in group]
    options = [name_of(one) for one in command.params if isinstance(one, click.Option)]
    assert sorted(grouped) == sorted(options)
    shown = CliRunner().invoke(main, [name, "--help"]).output
    assert [f"{heading}:" for heading in command.groups if f"\n{heading}:" not in shown] == []
    lines = [line.split("  ")[1] for line in shown.splitlines() if line.startswith("  -")]
    assert len(lines) == len(options) + 1  # and --help


COMPLETED = [
    ("dumpcmp com", {"compare", "compact", "completion"}),
    ("dumpcmp compare --golden", {"--golden-path"}),
    ("dumpcmp golden p", {"pack"}),
    ("dumpcmp dump gener", {"gener"}),  # the shell looks for files
]


@pytest.mark.parametrize("words, found", COMPLETED)
def test_a_shell_is_told_how_words_go_on(
    words: str, found: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    monkeypatch.setenv("_DUMPCMP_COMPLETE", "bash_complete")
    told = CliRunner().invoke(main, prog_name="dumpcmp").output.splitlines()
    assert {line.split(",")[1] for line in told} == found
    assert (told[0].split(",")[0] == "file") == (found == {"gener"})


@pytest.mark.parametrize("shell", SHELLS)
def test_what_completes_is_for_that_shell(shell: str, tmp_path: Path) -> None:
    script = CliRunner().invoke(main, ["completion", shell]).output
    assert f"_DUMPCMP_COMPLETE={shell}_complete" in script and "%(" not in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script)
    told = subprocess.run([shell, "-n", str(tmp_path / "script")], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr


TABS = [
    ("dumpcmp compar", "compare"),
    ("dumpcmp compare --golden", "--golden-path"),
    ("dumpcmp golden p", "pack"),
    ("dumpcmp dump gen", "generate.py"),
]


@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes_in_the_shell_itself(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "generate.py").touch()
    script = tmp_path / "script"
    script.write_text(CliRunner().invoke(main, ["completion", shell]).output)
    assert [completed(shell, script, words) for words, _ in TABS] == [word for _, word in TABS]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_docs_explain_every_command_and_option(name: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    sections = dict(re.findall(r"^## ([\w-]+)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE))
    command = main.get_command(click.Context(main), name)
    assert command is not None
    options = {max(option.opts, key=len) for option in command.params if option.opts[0][0] == "-"}
    assert [option for option in sorted(options) if option not in sections[name]] == []


MISUSES = [
    ("frobnicate", "No such command 'frobnicate'."),
    ("--nope", "No such option '--nope'."),
    ("compare", "Missing option '--my-path'."),
    ("compare --rtol x", "Invalid value for '--rtol': 'x' is not a valid float."),
    ("golden nope", "No such command 'nope'."),
    ("audit", "Missing argument 'PATH'."),
    ("comapre", "No such command 'comapre'. Did you mean 'compare'?"),
    ("explain --golden-path d1", "No such option '--golden-path'."),
]


@pytest.mark.parametrize("words, said", MISUSES)
def test_a_misuse_is_told_like_all_trouble(words: str, said: str) -> None:
    told = CliRunner().invoke(main, words.split())
    assert told.exit_code == 2
    first, then = told.stderr.splitlines()
    assert first == f"dumpcmp: {said}"
    assert then.startswith("  usage: ") and then.endswith("; --help says more")


@pytest.mark.parametrize("option", ["--rtol nan", "--atol inf", "--rtol -1", "--pcc 2"])
def test_a_tolerance_that_makes_no_sense_is_refused(option: str) -> None:
    words = f"compare --my-path nowhere --golden-path nowhere {option}"
    told = CliRunner().invoke(main, words.split())
    name, number = option.removeprefix("--").split()
    assert told.exit_code == 2 and told.stderr.startswith(f"dumpcmp: {name} is {number}, which")


def run(code: str) -> str:
    command = [sys.executable, "-X", "importtime", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


QUIET = """
import os, sys, threading, warnings, signal, atexit
before = (os.getcwd(), dict(os.environ), threading.active_count(), list(warnings.filters),
          signal.getsignal(signal.SIGINT), sys.path[:], sorted(os.listdir('.')))
import dumpcmp
after = (os.getcwd(), dict(os.environ), threading.active_count(), list(warnings.filters),
         signal.getsignal(signal.SIGINT), sys.path[:], sorted(os.listdir('.')))
assert before == after, 'importing changed something'
heavy = {'torch', 'h5py', 'pandas', 'numpy', 'rich', 'click'} & set(sys.modules)
assert not heavy, heavy
"""


def test_importing_has_no_side_effects_and_brings_nothing_heavy() -> None:
    assert run(QUIET) == ""


WITHOUT_TORCH = ["dumpcmp.Archive", "dumpcmp.audit", "dumpcmp.ArchiveWriter"]


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_the_archive_needs_no_torch(name: str) -> None:
    assert run(f"import sys, dumpcmp; {name}; assert 'torch' not in sys.modules") == ""


@pytest.mark.parametrize("command", ["audit", "show"])
def test_commands_on_archives_start_without_torch(command: str) -> None:
    code = f"from dumpcmp.cli import main; main(['{command}', '--help'], standalone_mode=False)"
    assert "Usage" in run(f"import sys; {code}; assert 'torch' not in sys.modules")


@pytest.mark.parametrize("name", dumpcmp.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(dumpcmp, name) is not None


COMPARES = """
import sys
from dumpcmp.cli import main
try:
    main(['compare', *sys.argv[1:]])
except SystemExit as ended:
    assert ended.code == 0
heavy = {'torch', 'h5py', 'pandas', 'yaml', 'multiprocessing', 'rich.progress', 'secrets'}
print(sorted(heavy & set(sys.modules)), [m for m in sys.modules if m.startswith('dumpcmp.replay')])
"""


def test_runs_that_are_the_same_are_compared_without_heavy_libraries(tmp_path: Path) -> None:
    sides = ["--golden-path", "sample_dumps/golden", "--my-path", "sample_dumps/golden"]
    command = [sys.executable, "-c", COMPARES, *sides, "--output", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[] []", ran.stdout
