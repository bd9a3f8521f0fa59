"""Callbacks of training loops record each Nth step of the model alone, and name the first NaN."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from dumpcmp import Archive, CaptureWarning, SelectionError, callbacks

NUM_STEPS = 6


class Model(nn.Module):
    """A regression whose loss is NaN from one call of training on."""

    def __init__(self, nan_from: int = 1000) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 1)
        self.nan_from, self.num_calls = nan_from, 0

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        hidden = self.first(x)
        if self.training:
            self.num_calls += 1
            if self.num_calls > self.nan_from:
                hidden = (hidden - hidden.max()).log()
        found = self.second(hidden.relu())
        return {"loss": (found[:, 0] - labels).square().mean(), "found": found}


class Numbers(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 4 * NUM_STEPS

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.full((4,), index / 10), "labels": torch.tensor(index / 5)}


def with_trainer(model: nn.Module, room: Path, **options: Any) -> callbacks.TrainingCapture:
    pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate")
    transformers = pytest.importorskip("transformers")
    callback = callbacks.hf_trainer(room / "d", **options)
    arguments = transformers.TrainingArguments(
        output_dir=str(room / "out"), max_steps=NUM_STEPS, per_device_train_batch_size=4,
        report_to=[], save_strategy="no", eval_strategy="steps", eval_steps=2, use_cpu=True,
        disable_tqdm=True, seed=0,
    )  # fmt: skip
    transformers.Trainer(
        model, arguments, train_dataset=Numbers(), eval_dataset=Numbers(), callbacks=[callback]
    ).train()
    taken: callbacks.TrainingCapture = callback.capture
    return taken


def with_lightning(model: nn.Module, room: Path, **options: Any) -> callbacks.TrainingCapture:
    module = pytest.importorskip("lightning.pytorch")

    class Module(module.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, _: int) -> Any:
            return self.model(**batch)["loss"]

        def validation_step(self, batch: Any, _: int) -> None:
            self.model(**batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    callback = callbacks.lightning(room / "d", **options)
    trainer = module.Trainer(
        max_steps=NUM_STEPS, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[callback],
        default_root_dir=room,
    )  # fmt: skip
    loader = DataLoader(Numbers(), batch_size=4)
    trainer.fit(Module(), loader, loader)
    taken: callbacks.TrainingCapture = callback.capture
    return taken


def with_accelerate(model: nn.Module, room: Path, **options: Any) -> callbacks.TrainingCapture:
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    prepared, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(Numbers(), batch_size=4)
    )
    with callbacks.accelerate(accelerator, prepared, room / "d", **options) as capture:
        for batch in loader:
            accelerator.backward(prepared(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            if capture.should_stop:
                break
            prepared.eval()
            prepared(**batch)
            prepared.train()
    return capture


Loop = Callable[..., callbacks.TrainingCapture]
# A fused optimizer does not count its writes, and what it wrote is seen in the output.
FIRST_WEIGHT = ("first", ("param.weight", "output.0"), 4)
LOOPS: list[Loop] = [with_trainer, with_lightning, with_accelerate]


@pytest.mark.parametrize("loop", LOOPS)
def test_each_nth_step_is_recorded_and_no_evaluation(loop: Loop, tmp_path: Path) -> None:
    model = Model()
    loop(model, tmp_path, every=3, level="modules")
    archive = Archive(tmp_path / "d")
    assert archive.complete and archive.models == ("Model",)
    assert len(archive.steps("Model")) == 2  # the first and the fourth step of six
    assert model.num_calls == NUM_STEPS
    for step in archive.steps("Model"):
        kinds = {key.slot.kind for key in archive.keys_of("Model", step)}
        assert {"input", "output", "grad", "grad_output"} <= kinds


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("every", [1, 1000])
def test_training_ends_at_the_first_nan_and_its_op_is_named(
    loop: Loop, every: int, tmp_path: Path
) -> None:
    model = Model(nan_from=2)
    with pytest.warns(CaptureWarning, match="the loss is not finite; it begins at Model"):
        taken = loop(model, tmp_path, every=every, stop_at_nan=True)
    # Where the step was not recorded the next one is, at the latest. Weights are NaN by then.
    op, slot, num_calls = ("<root>/log", ("output.0",), 3) if every == 1 else FIRST_WEIGHT
    assert taken.first_nan is not None
    assert str(taken.first_nan.op) == op and taken.first_nan.slot in slot
    assert model.num_calls == num_calls


def test_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(SelectionError, match="selects no step"):
        callbacks.TrainingCapture("d", every=0)
    with pytest.raises(SelectionError, match="exclude each other"):
        callbacks.TrainingCapture("d", keep="summary", budget="1G")


def test_a_capture_follows_a_loop_and_keeps_its_budget(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(256, 256), nn.ReLU()), torch.ones(512, 256)
    taken = callbacks.TrainingCapture(tmp_path / "d", every=2, budget="2M", level="modules")
    taken.begin(model)
    for number in range(6):
        taken.step_begins(number)
        model(x).sum().backward()
        taken.look_at(model(x).sum())  # twice in a step, as where gradients are accumulated
        taken.step_ends()
        model(x)  # an evaluation
    taken.end()
    archive = Archive(tmp_path / "d")
    assert archive.complete and len(archive.steps("Sequential")) == 6
    size = sum(path.stat().st_size for path in (tmp_path / "d").rglob("*") if path.is_file())
    assert size <= 2 << 20
