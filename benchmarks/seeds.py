"""Every example and test of the tools that dumpcmp follows, by name, with what runs it here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tables import Table

OPS, GRAPHS = "tests/partitioning/test_ops.py", "tests/partitioning/test_checkpoint.py"
WORDS, CHECKERS = "tests/verifying/test_words.py", "tests/verifying/test_verify.py"
BACKEND, LAYOUTS = "tests/verifying/test_backend.py", "tests/verifying/test_layouts.py"


@dataclass(frozen=True)
class Example:
    """An example of another tool, and the tests of ours that do the same."""

    tool: str
    name: str
    file: str
    words: str  # of the names of the tests, as for ``pytest -k``

    def covers(self, test: str) -> bool:
        """Whether `test`, as ``file::name``, is one of them."""
        file, _, name = test.partition("::")
        return file == self.file and re.search(self.words, name) is not None

    @property
    def command(self) -> str:
        """What runs them."""
        return f"pytest {self.file} -k '{self.words}'"


def _nnscaler() -> Iterator[Example]:
    names = (
        "conv2d 3-D g2", "conv2d 4-D g2", "dropout 4-D", "where", "view", "dropout 3-D",
        "fullslice", "conv_transpose2d 3-D g1", "conv_transpose2d 4-D g1", "conv1d g1",
        "conv1d g16", "conv_transpose1d g8", "conv_transpose1d g1", "batchnorm2d", "addmm",
        "instancenorm2d", "embedding", "conv2d 3-D g16", "conv2d 4-D g16",
        "conv_transpose2d 3-D g16", "conv_transpose2d 4-D g16",
    )  # fmt: skip
    for name in names:
        yield Example("nnScaler verify_ops", name, OPS, rf"of_nnscaler_pass\[{name}\]")
    for name, words in {
        "a graph.ckp that nnScaler wrote": "nnscaler_wrote",
        "a decoder's ops": "ops_of_a_decoder",
        "annotations as they stand": "annotations_are_verified",
    }.items():
        yield Example("nnScaler verify_graph", name, GRAPHS, words)


EXAMPLES = (
    *_nnscaler(),
    Example("tt-forge", "verify(inputs, framework_model, compiled_model, …)", WORDS,
            "way_of_writing"),
    Example("tt-forge", "the result of verify", WORDS, "unpacks"),
    Example("tt-forge", "enabled=False", WORDS, "switched_off"),
    Example("tt-forge", "with_backward", WORDS, "with_backward"),
    Example("tt-forge", "dump_tensors", WORDS, "dumped"),
    Example("tt-forge", "verify_size, verify_dtype, verify_shape", CHECKERS,
            "shape|dtype|output_less"),
    Example("tt-forge", "AutomaticValueChecker, AllClose…, Full…", CHECKERS, "each_checker_says"),
    Example("tt-forge", "the checkers' definitions", "tests/judge/test_likeness.py", ""),
    Example("torch test_verify_correctness", "test_example_inputs", BACKEND,
            "run_the_graph_on_its_examples"),
    Example("torch test_verify_correctness", "test_torchscript", BACKEND, "traced"),
    Example("torch test_verify_correctness", "test_incorrect_verify_true", BACKEND,
            "wrong_backend_raises"),
    Example("torch test_verify_correctness", "test_incorrect_verify_false", BACKEND,
            "switched_off_the_backend"),
    Example("torch test_verify_correctness", "patched on a class", BACKEND, "tests_of_a_class"),
    Example("torch test_layout_optim", "test_2conv, test_3conv_with_graph_break", LAYOUTS,
            "graph_break"),
    Example("torch test_layout_optim", "test_keep_output_layout_infer, _with_freezing", LAYOUTS,
            "keeps_its_layout"),
    Example("torch test_layout_optim", "test_training_acc", LAYOUTS, "graph_break|seven_times"),
    Example("torch test_layout_optim", "test_mutate_view, test_mutate_base", LAYOUTS,
            "base_and_view"),
    Example("torch test_layout_optim", "test_mutate_…_for_conv_output", LAYOUTS,
            "convolutions_output"),
    Example("torch test_layout_optim", "test_dynamic_shape_specialization", LAYOUTS,
            "dynamic_shapes"),
    Example("torch test_layout_optim", "test_nll_loss_backward", LAYOUTS, "a_loss_through"),
    Example("torch test_layout_optim", "same(…, fp64_ref=…)", "tests/verifying/test_at_hand.py",
            ""),
    Example("msit", "metrics by their definitions", "tests/comparing/test_own_metrics.py", ""),
    Example("msit", "dump_token, dump_layer, dump_mode", "tests/comparing/test_requests.py", ""),
    Example("msit", "data to min and max", "tests/compacting/test_compacting.py",
            "own_numbers|reducer"),
    Example("24 miscompilations", "verify, backend, command, fixture",
            "tests/verifying/test_wrong_backends.py", ""),
)  # fmt: skip

_COMPARE = "compare --golden-path {a} --my-path {b}"
SHELL = {
    "GE against FX": (
        "dump --mode fx --path fx", "dump --mode compiled --path ge",
        _COMPARE.format(a="fx", b="ge"),
    ),
    "GE against GE without fusion": (
        "dump --mode compiled --fusion off --path off", _COMPARE.format(a="off", b="ge"),
    ),
    "two tokens of one layer": (
        "dump --mode compiled --token 1,2 --layer layers.0 --path some",
        _COMPARE.format(a="ge", b="some"),
    ),
    "data to min and max, beside the run": (
        "dump --mode fx --compact --path info", _COMPARE.format(a="fx", b="info"),
    ),
}  # fmt: skip


def table() -> Table:
    """Run all of it."""
    rows = [*_tested(), *_from_the_shell()]
    how = "Each example and test of five tools by name; the tests and commands that do the same."
    return Table("seeds", ("tool", "example", "command", "result"), rows, how)


def _tested() -> Iterator[list[str]]:
    files = sorted({example.file for example in EXAMPLES})
    with tempfile.TemporaryDirectory() as room:
        report = Path(room, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                   f"--junitxml={report}", *files]  # fmt: skip
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, env=_environment())
        results = dict(_results(report))
    for example in EXAMPLES:
        found = [result for test, result in results.items() if example.covers(test)]
        good = found.count("passed")
        said = f"{good} of {len(found)} pass" if found else "NOTHING RAN"
        yield [example.tool, example.name, f"`{example.command}`", said]


def _results(report: Path) -> Iterator[tuple[str, str]]:
    for case in ET.parse(report).iter("testcase"):
        file = case.attrib["classname"].replace(".", "/")
        file = re.sub(r"/Test\w+$", "", file) + ".py"
        bad = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        yield f"{file}::{case.attrib['name']}", bad[0] if bad else "passed"


def _from_the_shell() -> Iterator[list[str]]:
    with tempfile.TemporaryDirectory() as room:
        for name, commands in SHELL.items():
            ended = [_run(command, room) for command in commands]
            said = "SAME" if not any(ended) else f"exit codes {ended}"
            yield ["msit", name, "; ".join(f"`dumpcmp {command}`" for command in commands), said]


def _run(command: str, room: str) -> int:
    words = [sys.executable, "-m", "dumpcmp", *command.split()]
    done = subprocess.run(words, cwd=room, capture_output=True, check=False, env=_environment())
    return done.returncode


def _environment() -> dict[str, str]:
    root = str(Path(__file__).parents[1])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
