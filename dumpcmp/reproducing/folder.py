"""The folder of a repro: the script, its values, where they come from, and a README."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dumpcmp.archive.paths import own_text
from dumpcmp.archive.read.reader import Archive, source_of
from dumpcmp.report.markdown import as_code, as_text
from dumpcmp.reproducing.case import GuiltyKind, ReproCase, ShownBy
from dumpcmp.reproducing.script import RIGHT_OPS, script_of, stored_values
from dumpcmp.reproducing.tensor_file import write_tensors

_FACTS = ("versions", "platform", "device", "num_threads", "mode", "seed", "dtype", "generators")
_SHOWN = {
    ShownBy.FRESH: "The code gives the wrong result in a fresh process.",
    ShownBy.RECORDED: "The code is right in a fresh process. What the run recorded is wrong, and "
    "the script checks that: another kernel, device, patch or version computed it there.",
}
_BOTH = "The value itself is another: `expected` is golden's, `x0` is mine."


def write_repro(path: Path, case: ReproCase, archive: Archive, size: str) -> None:
    """Write all files of the repro into `path`, a directory that is there."""
    write_tensors(path / "values.safetensors", stored_values(case))
    (path / "repro.py").write_text(script_of(case))
    (path / "environment.json").write_text(json.dumps(environment(archive), indent=1) + "\n")
    if source := kernel_source(case, archive):
        (path / "kernel.txt").write_text(source + "\n")
    (path / "README.md").write_text(readme(case, archive, size))


def environment(archive: Archive) -> dict[str, Any]:
    """What is known of where the run ran."""
    told = next(iter(archive.run.values())).get("run", {})
    return {word: told[word] for word in _FACTS if word in told}


def kernel_source(case: ReproCase, archive: Archive) -> str:
    """The generated code of the kernel that computed it, where the run has kept it."""
    kernel = case.facts.get("kernel", "")
    texts = (own_text(p) for (_, _, name), p in archive.texts.items() if name.startswith("code-"))
    sources = (source_of(text, kernel) for text in texts) if kernel else ()
    return next(filter(None, sources), "")


def readme(case: ReproCase, archive: Archive, size: str) -> str:
    """Ten lines: what is wrong, how to see it, and what the files are."""
    versions = environment(archive).get("versions", {})
    torch = versions.get("torch", "unknown")
    source = case.facts.get("source", "")
    at = f" (from {source})" if source else ""
    note = f" {case.facts['note']}." if "note" in case.facts else ""
    lines = [
        f"# {case.kind.value}: {as_text(case.place)}",
        "",
        as_text(f"{case.reason}{at}.{note}"),
        _BOTH if case.kind is GuiltyKind.VALUE else _SHOWN[case.shown],
        "",
        f"- `{case.command}` fails; it needs torch and numpy, nothing else.",
        f"- `{case.command} --right` passes: it puts {RIGHT_OPS[case.right]} in place.",
        f"- `values.safetensors`: {_inputs(case)}; {size}.",
        f"- `environment.json`: where it ran, with torch {as_text(str(torch))}.",
        f"- {_kernel_line(case, archive)}",
    ]
    return "\n".join(lines) + "\n"


def _inputs(case: ReproCase) -> str:
    drawn = "random numbers for the inputs" if case.is_random else "the inputs"
    given = ", what was given out" if case.recorded is not None else ""
    return f"{drawn}{given} and what is right"


def _kernel_line(case: ReproCase, archive: Archive) -> str:
    if kernel_source(case, archive):
        return f"`kernel.txt`: the generated kernel {as_code(case.facts['kernel'])}."
    return "No source of a kernel was recorded."
