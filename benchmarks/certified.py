"""Whether compiled captures leave kernels and results as they are: certificates of many models."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from benchmarks import certified_model, zoo
from benchmarks.tables import Table

HEADINGS = ("model", "run", "certified", "kernels", "what was compared, or the first difference")
_SAID = re.compile(r"^dumpcmp: (not certified|certified): (.*)$", re.MULTILINE)


def cases() -> list[tuple[str, str]]:
    """The models, for inference and for training; the variable MODELS names some, by semicolons."""
    wanted = os.environ.get("MODELS", "").split(";")
    names = [name for name in zoo.MODELS if wanted == [""] or name in wanted]
    return [
        (name, kind)
        for name in names
        for kind in ("inference", "training")
        if kind == "training" or name not in zoo.TRAINING
    ]


def measured(name: str, kind: str, device: str) -> list[str]:
    """Dump one model compiled, with a certificate, in processes of their own."""
    with tempfile.TemporaryDirectory() as room:
        words = [sys.executable, "-W", "ignore", "-m", "dumpcmp", "dump", "--mode", "compiled"]
        words += ["--certify", "--path", str(Path(room, "d")), "--keep", "summary"]
        words += ["--backward"] if kind == "training" else []
        words += [certified_model.__file__, name, kind, device]
        settings = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        ran = subprocess.run(
            words, env={**os.environ, **settings}, capture_output=True, text=True, check=False
        )
    found = _SAID.search(ran.stderr)
    verdict, said = found.groups() if found else ("no answer", ran.stderr.strip()[-300:])
    kernels = re.match(r"(\d+) kernels?", said)
    row = [name, kind, {"certified": "yes", "not certified": "no"}.get(verdict, verdict)]
    row += [kernels.group(1) if kernels else "", said.replace("\n", " ")]
    print("| " + " | ".join(row) + " |", file=sys.stderr, flush=True)
    return row


def table() -> Table:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 1)) as pool:
        rows = list(pool.map(lambda case: measured(case[0], case[1], device), cases()))
    num_certified = sum(row[2] == "yes" for row in rows)
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    how = (
        f"torch {torch.__version__}, {where}. Each model is dumped with `--mode compiled "
        "--certify`: the same command also runs in a process without dumpcmp. "
        f"{num_certified} of {len(rows)} have the program's own kernels to the byte, and its bits."
    )
    return Table("certified", HEADINGS, rows, how)
