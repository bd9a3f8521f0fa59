"""The command as users type it, in a shell, on real programs."""

from __future__ import annotations

import gc
import json
import os
import pty
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dumpcmp import Archive
from dumpcmp.archive.integrity import audit
from dumpcmp.cli import main
from dumpcmp.nouns.key import Key
from dumpcmp.nouns.options import readable

PROGRAMS = Path(__file__).parents[1] / "taps" / "programs"


def dumpcmp_dump(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "dumpcmp", "dump", *words]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120
    )


@dataclass
class Ended:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ended]:
    """The same command without a new process, for what does not need one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*words: str) -> Ended:
        with pytest.raises(SystemExit) as ended:
            main(["dump", *words])
        assert isinstance(ended.value.code, int)
        return Ended(ended.value.code, *capsys.readouterr())

    return run


def facts(path: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((path / "worldsize1_global_rank0" / "run.json").read_text())
    return told


def ops(archive: Archive) -> set[str]:
    return {key.op for key in archive}


def test_a_program_keeps_how_python_collects_its_garbage(here: Callable[..., Ended]) -> None:
    script = Path("collected.py")
    script.write_text(
        "import gc\nopen('seen', 'w').write(str((gc.get_threshold(), gc.isenabled())))"
    )
    here("--path", "d", str(script))
    assert Path("seen").read_text() == str((gc.get_threshold(), gc.isenabled()))


def test_the_demo_needs_no_arguments(tmp_path: Path, here: Callable[..., Ended]) -> None:
    ran = here("--mode", "fx", "--path", "d1")
    assert ran.returncode == 0, ran.stderr
    assert "4 tokens" in ran.stderr and "dumpcmp show d1" in ran.stderr
    archive = Archive(tmp_path / "d1")
    assert {key.step for key in archive} == {0, 1, 2, 3}
    assert {"layers.0.attn/scaled_dot_product_attention", "head/linear"} <= ops(archive)
    assert list((tmp_path / "d1").rglob("graph-0.txt"))


def test_filters_and_the_arguments_of_the_script(
    tmp_path: Path, here: Callable[..., Ended]
) -> None:
    ran = here(
        "--mode", "eager", "--path", "d1", "--token", "0,2-3", "--layer", "layers.*.attn*",
        "--io", "output", str(PROGRAMS / "generate.py"), "--prompt", "hello", "--tokens", "5",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("generated ") and len(ran.stdout.split()) == 6
    archive = Archive(tmp_path / "d1")
    assert {key.step for key in archive} == {0, 2, 3}
    computed = [key for key in archive if key.slot.kind not in ("param", "buffer")]
    assert all(key.op.startswith("layers.") and ".attn" in key.op for key in computed)
    assert computed and all(key.slot.startswith("output") for key in computed)
    first = archive[Key("TinyDecoder", 0, "layers.0.attn", 0, "output.0")]
    assert first.shape == (1, 5, 64)


def test_a_module_with_gradients_is_repeatable_by_its_seed(
    tmp_path: Path, here: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process that draws no other numbers, and in this one."""
    words = ["--backward", "--weights", "--seed", "5", "-m", "trainer.train", "--lr", "0.1"]
    monkeypatch.chdir(PROGRAMS)
    ran = dumpcmp_dump("--path", str(tmp_path / "d1"), *words, cwd=PROGRAMS)
    again = here("--path", str(tmp_path / "d2"), *words)
    assert (ran.returncode, again.returncode) == (0, 0), ran.stderr + again.stderr
    assert ran.stdout == again.stdout
    one, two = Archive(tmp_path / "d1"), Archive(tmp_path / "d2")
    assert set(one) == set(two)
    assert {one[key].digest for key in one} == {two[key].digest for key in two}
    slots = {(key.op, key.slot) for key in one if key.model == "Sequential" and key.step == 1}
    assert {("0", "grad.weight"), ("3/linear", "grad_output.0"), ("1", "grad_input.0"),
            ("2/dropout", "rng.cpu")} <= slots  # fmt: skip
    assert Key("Sequential", 0, "0", 0, "param.weight") in one, "weights are recorded once a run"
    assert {key.model for key in one} == {"Sequential", "CrossEntropyLoss"}
    run = facts(tmp_path / "d1")["run"]
    assert run["seed"] == 5 and run["command"][-4:] == ["-m", "trainer.train", "--lr", "0.1"]


def test_a_factory(here: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROGRAMS))
    ran = here("--mode", "aten", "--path", "d1", "--model", "factories:build")
    assert ran.returncode == 0, ran.stderr
    assert {"0/aten.addmm", "1/aten.tanh"} <= ops(Archive("d1"))


@pytest.mark.parametrize(
    "factory, model", [("build_with_keywords", "Bilinear"), ("build_alone", "Linear")]
)
def test_what_a_factory_may_return(
    factory: str, model: str, here: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(PROGRAMS))
    assert here("--path", "d1", "--model", f"factories:{factory}").returncode == 0
    assert {key.model for key in Archive("d1")} == {model}


def test_a_run_says_what_it_was(tmp_path: Path, here: Callable[..., Ended]) -> None:
    here("--path", "d1", "--token", "1", str(PROGRAMS / "generate.py"))
    stated = facts(tmp_path / "d1")
    run = stated["run"]
    assert stated["complete"] is True and stated["started"] and stated["ended"]
    assert run["mode"] == "eager" and run["command"]
    assert run["filters"]["tokens"] == [[1, 1]]
    assert {"dumpcmp", "torch", "numpy", "python"} <= set(run["versions"])
    assert run["seen"]["steps"] == 1


def test_the_programs_exception_is_shown_as_its_own(
    tmp_path: Path, here: Callable[..., Ended]
) -> None:
    ran = here("--path", "d1", str(PROGRAMS / "fails.py"))
    assert ran.returncode == 2
    assert "ValueError: the user's own trouble" in ran.stderr
    assert "fails.py" in ran.stderr and "dumpcmp/taps" not in ran.stderr
    assert "up to where the program stopped" in ran.stderr
    archive = Archive(tmp_path / "d1")
    assert Key("Fragile", 1, "proj/linear", 0, "output.0") in archive
    assert "the user's own trouble" in json.dumps(facts(tmp_path / "d1"))


@pytest.mark.parametrize("status, code", [("0", 0), ("3", 2)])
def test_exit_statuses(tmp_path: Path, status: str, code: int, here: Callable[..., Ended]) -> None:
    ran = here("--path", "d1", str(PROGRAMS / "leaves.py"), status)
    assert ran.returncode == code, ran.stderr
    assert len(Archive(tmp_path / "d1")) > 0


def test_saved_values_lie_where_they_were_saved(tmp_path: Path, here: Callable[..., Ended]) -> None:
    ran = here("--path", "d1", str(PROGRAMS / "saves.py"))
    assert ran.returncode == 0, ran.stderr
    archive = Archive(tmp_path / "d1")
    second = archive.load(archive[Key("Saver", 0, "<root>/doubled", 1, "output.0")])
    assert np.array_equal(second.numbers(), [3.0, 3.0])
    outside = Key("saved", 0, "<root>/before", 0, "output.0")
    assert np.array_equal(archive.load(archive[outside]).numbers(), [0, 1, 2])
    assert "saves.py:" in archive.calls[outside.site].source


NONSENSE = [
    (["--token", "-1"], "cannot read '-1' as a token"),
    (["--token", "3-1"], "runs backwards"),
    (["--token", "one"], "counted from 0"),
    (["--layer", ""], "names no layer"),
    (["--io", "both"], "valid are: input, output, all"),
    (["--level", "ops"], "valid are: modules, functions"),
    (["--mode", "slow"], "valid are: eager, fx, aten"),
    (["--dtype", "int8"], "valid are: float64, float32, float16, bfloat16"),
    (["nowhere.py"], "nowhere.py is not a file"),
    (["-m", "no_such_package.module"], "there is no module no_such_package.module"),
    (["--model", "factories"], "write pkg.mod:function"),
    (["--model", "factories:build", "x.py"], "exclude each other"),
    (["--model", "no_such_module:build"], "No module named 'no_such_module'"),
]


@pytest.mark.parametrize("words, said", NONSENSE, ids=lambda value: " ".join(value)[:30])
def test_nonsense_is_refused_with_what_is_valid(
    words: list[str], said: str, here: Callable[..., Ended]
) -> None:
    ran = here("--path", "d1", *words)
    assert ran.returncode == 2
    assert said in ran.stderr
    assert not Path("d1").exists()


def test_what_a_factory_must_return(
    here: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(PROGRAMS))
    ran = here("--path", "d1", "--model", "factories:build_nothing")
    assert ran.returncode == 2 and "gave int, not a model and its inputs" in ran.stderr


SILENCE = [
    (["--layer", "layer.*.attn", "generate.py"], "--layer 'layer.*.attn' matched nothing; closest"),
    (["--token", "7", "generate.py"], "the program ran tokens 0 to 3"),
    (["idle.py"], "no module was called"),
]


@pytest.mark.parametrize("words, said", SILENCE, ids=["layer", "token", "idle"])
def test_an_empty_dump_is_never_silent(
    words: list[str], said: str, tmp_path: Path, here: Callable[..., Ended]
) -> None:
    ran = here("--path", "d1", *words[:-1], str(PROGRAMS / words[-1]))
    assert ran.returncode == 2
    assert said in ran.stderr and "nothing was recorded" in ran.stderr


def test_what_to_do_next_is_written_as_a_shell_reads_it(here: Callable[..., Ended]) -> None:
    ran = here("--path", "my dump", str(PROGRAMS / "saves.py"))
    assert "dumpcmp show 'my dump'" in ran.stderr and "--golden-path 'my dump'" in ran.stderr


def test_a_path_is_not_reused_unless_told(tmp_path: Path, here: Callable[..., Ended]) -> None:
    words = ["--path", "d1", str(PROGRAMS / "saves.py")]
    assert here(*words).returncode == 0
    again = here(*words)
    assert again.returncode == 2 and "--overwrite" in again.stderr
    assert here("--overwrite", *words).returncode == 0


def test_a_live_line_on_a_terminal_and_nothing_on_a_pipe(
    tmp_path: Path, here: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--path", str(tmp_path / "d1"), "--level", "modules", str(PROGRAMS / "saves.py")]
    monkeypatch.setenv("FORCE_COLOR", "1")  # by itself rich writes no such line into a pipe
    assert "MB/s" not in here(*words).stderr
    monkeypatch.delenv("FORCE_COLOR")
    shown = on_a_terminal([sys.executable, "-m", "dumpcmp", "dump", "--overwrite", *words])
    assert all(word in shown for word in ("ops", "values", "MB/s", "queued", "for the disk"))


def on_a_terminal(command: list[str]) -> str:
    """What `command` shows on a terminal of its own."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    with subprocess.Popen(command, stdout=follower, stderr=follower, env=environment) as running:
        os.close(follower)
        shown = b""
        with suppress(OSError):  # the terminal is gone with the program
            while block := os.read(leader, 4096):
                shown += block
        assert running.wait(120) == 0
    os.close(leader)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())


@pytest.fixture
def sizes_of_files() -> Iterator[None]:
    """A program may limit them: for itself."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_capture_that_stopped_is_told_of_and_is_trouble(
    tmp_path: Path, here: Callable[..., Ended], sizes_of_files: None
) -> None:
    script = tmp_path / "limited.py"
    script.write_text(
        "import resource, torch\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))\n"
        "model = torch.nn.Linear(256, 256)\n"
        "for _ in range(50):\n    model(torch.rand(64, 256))\n"
    )
    ran = here("--path", "d", str(script))
    assert ran.returncode == 2
    assert re.search(r"trouble: OSError.*File too large; \d+ values .* not in", ran.stderr)


def test_a_program_that_goes_elsewhere_has_one_archive(
    tmp_path: Path, here: Callable[..., Ended]
) -> None:
    script = tmp_path / "wanders.py"
    script.write_text(
        "import os, torch\nmodel = torch.nn.Linear(4, 4)\nmodel(torch.rand(1, 4))\n"
        "os.makedirs('elsewhere')\nos.chdir('elsewhere')\nmodel(torch.rand(1, 4))\n"
    )
    ran = here("--path", "d", str(script))
    assert ran.returncode == 0, ran.stderr
    assert Archive(tmp_path / "d").steps("Linear") == (0, 1)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_compactor_that_fails_is_trouble(tmp_path: Path, here: Callable[..., Ended]) -> None:
    ran = here("--path", "d", "--compact", "--reduce", "nowhere:f")
    assert ran.returncode == 2 and "nowhere" in ran.stderr


def test_every_nth_token_and_what_it_cost(here: Callable[..., Ended], tmp_path: Path) -> None:
    ran = here("--path", "d", "--every", "2", "--buffer", "8M").stderr
    archive = Archive(tmp_path / "d")
    assert archive.steps("TinyDecoder") == (0, 2)
    assert archive.run[0]["run"]["filters"]["every"] == 2
    assert audit(tmp_path / "d").exit_code == 0, "steps left out by request are not missed"
    assert "cost: " in ran and "of the" in ran and "buffer 8.4 MB" in ran
    run = archive.run[0]
    again, size = run["nbytes_shared"], run["nbytes"] - run["nbytes_shared"]
    assert 0 < size < sum(part.stat().st_size for part in (tmp_path / "d").rglob("*.h5"))
    told = f"{readable(size)} written ({readable(again)} of earlier tokens not written again)"
    assert again > 16 << 10 and told in ran and f" {size / 1e6:.1f} MB in d\n" in ran
