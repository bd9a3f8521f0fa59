"""No input, however odd, makes a reader end in anything but an answer or a sentence, in time.

``make fuzz`` reads more than a million, guided by what they reach. What was found by and by lies in
`corpus`, and each run begins with it.
"""

from __future__ import annotations

import hashlib
import os
import random
import resource
import sys
import warnings
from pathlib import Path

import pytest

from tests.readers import guided
from tests.readers.guided import Guided
from tests.readers.targets import Targets

MUTANTS = int(os.environ.get("DUMPCMP_MUTANTS", "60"))
SEED = int(os.environ.get("DUMPCMP_SEED", "0"))
KEEP = os.environ.get("DUMPCMP_CORPUS")  # where to write what is new; by hand into the repository
CORPUS = Path(__file__).parent / "corpus"
MEMORY = 2 << 30  # bytes that the process may grow by
NAMES = (
    "parts", "numbers", "runs", "manifests", "manifest lines", "rings", "npy", "npz", "safetensors",
    "torch", "msprobe", "mappings", "layouts", "layout texts", "packages", "checkpoints",
    "fixtures", "fixture facts", "reports", "rows", "journals", "ge tasks", "ge texts",
    "ge numbers", "fx", "sglang", "onnx", "log probabilities", "entries of ranks", "answers",
    "weight indexes", "row ids", "package weights",
)  # fmt: skip


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Targets:
    return Targets(tmp_path_factory.mktemp("readers"))


def corpus(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name.replace(" ", "-")).glob("*.bin"))]


def test_every_reader_is_read_from(targets: Targets) -> None:
    assert tuple(targets.all) == NAMES


@pytest.mark.parametrize(
    "name",  # torch.export takes long to import, and a test of hostile packages has it anyway
    [pytest.param(n, marks=[pytest.mark.long] if n == "packages" else []) for n in NAMES],
)
def test_a_reader_answers_or_refuses_in_a_sentence(name: str, targets: Targets) -> None:
    read, inputs = targets.all[name]
    fuzzer = Guided(read, [*inputs, *corpus(name)], random.Random(f"{SEED} {name}"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy and torch, about odd headers and numbers
        fuzzer.run(MUTANTS)
    assert fuzzer.num_runs >= MUTANTS and len(fuzzer.seen) > 20
    unit = 1 if sys.platform == "darwin" else 1024
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit < MEMORY
    for content in fuzzer.kept if KEEP else ():
        room = Path(str(KEEP)) / name.replace(" ", "-")
        room.mkdir(parents=True, exist_ok=True)
        (room / f"{hashlib.sha1(content).hexdigest()[:12]}.bin").write_bytes(content)


def test_the_fuzzer_finds_what_is_hidden_behind_several_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By chance alone, four bits at their places at once would take a thousand million inputs."""
    monkeypatch.setattr(guided, "PACKAGE", str(Path(__file__).parent))
    fuzzer = Guided(_hides, [b"...."], random.Random(0), traced_every=1)
    with pytest.raises(KeyError, match="found"):
        fuzzer.run(30_000)


def _hides(content: bytes) -> None:
    if content[:1] != b"/":
        return
    if content[1:2] != b"/":
        return
    if content[2:3] != b"/":
        return
    if content[3:4] == b"/":
        raise KeyError("found")
