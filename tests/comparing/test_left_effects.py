"""What a run leaves behind: state, inputs, optimizers, settings of training, generators."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset, dataloader

import dumpcmp
from dumpcmp import Archive, Outcome, Row, Verdict
from dumpcmp.nouns.effects import Effect, shown_tree
from dumpcmp.nouns.outcome import Conclusion
from tests.taps.test_returned import effects_of

Act = Callable[[Any, Tensor, Tensor, dict[str, Any]], None]


class Acting(nn.Module):
    """A layer that does something besides: to itself, to its input, to a cache."""

    kept: Tensor

    def __init__(self, act: Act) -> None:
        super().__init__()
        self.layer, self.act = nn.Linear(4, 4), act
        self.register_buffer("kept", torch.zeros(4))

    def forward(self, x: Tensor, cache: dict[str, Any]) -> Tensor:
        y: Tensor = self.layer(x)
        self.act(self, x, y, cache)
        return y


def acted(path: Path, act: Act, mode: str = "eager", **options: Any) -> Path:
    torch.manual_seed(0)
    model = Acting(act)
    with dumpcmp.capture(model, path, mode=mode, **options), torch.no_grad():
        for step in range(2):
            model(torch.ones(2, 4) + step, {"rows": [torch.zeros(4)]})
    return path


def nothing(m: Any, x: Tensor, y: Tensor, cache: dict[str, Any]) -> None: ...


def uncounted(number: float) -> Act:
    """Writes to the buffer beneath torch, which counts no write and sees no op."""

    def act(m: Any, x: Tensor, y: Tensor, cache: dict[str, Any]) -> None:
        m.kept.numpy()[:] = number

    return act


def counted(number: float) -> Act:
    def act(m: Any, x: Tensor, y: Tensor, cache: dict[str, Any]) -> None:
        m.kept.add_(number)

    return act


def into_input(m: Any, x: Tensor, y: Tensor, cache: dict[str, Any]) -> None:
    x.add_(1.0)


def beside_input(m: Any, x: Tensor, y: Tensor, cache: dict[str, Any]) -> None:
    x.clone().add_(1.0)


def appending(number: int) -> Act:
    def act(m: Any, x: Tensor, y: Tensor, cache: dict[str, Any]) -> None:
        cache["rows"].append(number)

    return act


def into_cache(number: float) -> Act:
    def act(m: Any, x: Tensor, y: Tensor, cache: dict[str, Any]) -> None:
        cache["rows"][0].numpy()[:] = number  # which no op does
        cache["rows"][0].add_(0.0)

    return act


STATES: dict[str, tuple[Act, Act, str]] = {
    "a buffer that nobody was seen to write": (uncounted(1), uncounted(2), "buffer.kept: "),
    "a buffer that is not written": (uncounted(1), nothing, "buffer.kept: "),
    "a buffer that is written": (nothing, uncounted(1), "buffer.kept: "),
    "a buffer that mine alone writes": (nothing, counted(1.0), "/add (call 0, token 0): only the"),
    "an input": (into_input, beside_input, "golden's forward changed its argument 'x' in place"),
    "my input": (beside_input, into_input, "my forward changed its argument 'x' in place"),
    "a list": (appending(1), appending(2), "inputs.cache['rows'][1] is 1 in golden, 2 in mine"),
    "a longer list": (appending(1), nothing, "changed its argument 'cache' in place"),
    "a cache": (into_cache(1.0), into_cache(2.0), "token 0"),
}


@pytest.mark.parametrize(("golden", "target", "said"), STATES.values(), ids=STATES)
def test_what_a_step_leaves_behind_is_told(
    golden: Act, target: Act, said: str, tmp_path: Path
) -> None:
    ours, theirs = acted(tmp_path / "g", golden), acted(tmp_path / "t", target)
    outcome = dumpcmp.compare(ours, theirs)
    assert outcome.exit_code == 1, outcome.word
    assert said in outcome.word
    assert dumpcmp.compare(theirs, ours).exit_code == 1
    assert dumpcmp.compare(ours, acted(tmp_path / "s", golden)).conclusion is Conclusion.SAME


def test_only_what_changed_is_recorded(tmp_path: Path) -> None:
    acted(tmp_path / "a", nothing)
    assert not effects_of(tmp_path / "a", Effect.STATE)
    assert not effects_of(tmp_path / "a", Effect.INPUTS)
    acted(tmp_path / "b", counted(1.0))
    (call,) = effects_of(tmp_path / "b", Effect.STATE)
    assert shown_tree(call) == "state(buffer.kept=tensor buffer.kept)"
    held = Archive(tmp_path / "b").tensor(call.site.key("buffer.kept"))
    assert held.tolist() == [2.0] * 4


@pytest.mark.parametrize("mode", ["fx", "aten"])
def test_other_modes_see_the_same(mode: str, tmp_path: Path) -> None:
    golden = acted(tmp_path / "g", counted(1.0), mode)
    assert dumpcmp.compare(golden, acted(tmp_path / "s", counted(1.0), mode)).passed
    outcome = dumpcmp.compare(golden, acted(tmp_path / "t", counted(2.0), mode))
    states = [row for row in outcome.rows if row.key.op == Effect.STATE.op]
    assert [row.verdict for row in states] == [Verdict.FAIL]


def trained(
    path: Path,
    *,
    rate: float = 0.1,
    factor: float = 0.5,
    norm: float | None = 1.0,
    resumed: bool = False,
    draws: int = 0,
    way: Any = torch.optim.Adam,
    noise: float = 0.0,
    scales: bool = False,
    spoils: str = "",
    **options: Any,
) -> Path:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    with torch.no_grad():
        net.get_parameter("0.weight").mul_(1 + noise)
    optimizer = way(net.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, factor)
    scaler = torch.amp.GradScaler("cpu", enabled=scales)
    with dumpcmp.capture(net, path, **options):
        for step in range(3):
            data = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
            scaler.scale(net(data).square().mean()).backward()
            scaler.unscale_(optimizer)
            if norm is not None:
                nn.utils.clip_grad_norm_(net.parameters(), norm)
            if resumed and step == 2:  # as after a checkpoint without the optimizer
                optimizer.state[net[0].bias]["exp_avg"].zero_()
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            optimizer.zero_grad()
        torch.rand(draws)
        for kept in optimizer.state.values():
            if spoils in kept:
                kept[spoils].mul_(1.001)  # which no step sees any more
    return path


TRAININGS: dict[str, tuple[dict[str, Any], str]] = {
    "the rate": ({"rate": 0.2}, "groups[0]['lr'] is 0.1 in golden"),
    "the schedule": ({"factor": 0.4}, "groups[0]['lr'] is 0.05"),
    "the largest norm": ({"norm": 9.0}, "clip_grad_norm_: max_norm is 1.0 in golden, 9.0 in mine"),
    "the optimizer's state": ({"resumed": True}, "optimizer at token 2: output.state.0.bias"),
    "a mean": ({"spoils": "exp_avg"}, "optimizer at token 2: output.state.0.weight.exp_avg: "),
    "a generator": ({"draws": 1}, "generators at token 2: the cpu generator ends in another"),
}


def follow(tmp_path: Path, golden: dict[str, Any], target: dict[str, Any]) -> Outcome:
    return dumpcmp.compare(trained(tmp_path / "g", **golden), trained(tmp_path / "t", **target))


@pytest.mark.each_value_once
@pytest.mark.parametrize(("ways", "said"), TRAININGS.values(), ids=TRAININGS)
@pytest.mark.parametrize("backward", [True, False])
def test_what_steers_training_is_told(
    ways: dict[str, Any], said: str, backward: bool, tmp_path: Path
) -> None:
    outcome = follow(tmp_path, {"backward": backward}, {"backward": backward, **ways})
    assert outcome.exit_code == 1
    assert said in outcome.word


@pytest.mark.parametrize("backward", [True, False])
def test_a_training_that_is_the_same_is_the_same(backward: bool, tmp_path: Path) -> None:
    ways = {"backward": backward, "scales": True}
    outcome = follow(tmp_path, ways, ways)
    assert outcome.conclusion is Conclusion.SAME, outcome.word
    kinds = {row.key.op for row in outcome.rows if row.key.op.is_effect}
    assert {Effect.TRAINING.op, Effect.OPTIMIZER.op, Effect.STATE.op} <= kinds
    names = [row.key.slot for row in outcome.rows if row.key.op == Effect.OPTIMIZER.op]
    assert "output.state.2.weight.exp_avg_sq" in names
    parts = list((tmp_path / "g").rglob("part-*.h5"))
    assert len(parts) == 3, "each step is one part"


def test_another_way_to_step_is_the_same(tmp_path: Path) -> None:
    def looping(*args: Any, **kwargs: Any) -> Any:
        return torch.optim.Adam(*args, foreach=False, **kwargs)

    outcome = follow(tmp_path, {"backward": True}, {"backward": True, "way": looping})
    assert outcome.passed, outcome.word


def test_rounding_in_training_is_no_difference(tmp_path: Path) -> None:
    def sgd(weights: Any, lr: float) -> Any:
        return torch.optim.SGD(weights, lr=lr, momentum=0.9)

    moved = {"backward": True, "way": sgd, "weights": False, "noise": 2.0**-22}
    outcome = follow(tmp_path, {"backward": True, "way": sgd}, moved)
    effects = [row for row in outcome.rows if row.key.op.is_effect and not row.cause]
    assert not [row for row in effects if row.verdict.fails], outcome.headline


def resumed(path: Path, first: int, way: Any, loads: bool = True, **options: Any) -> Path:
    """Four steps, of which those from `first` on are captured; there it was stopped and resumed."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = way(net.parameters())
    with ExitStack() as around:
        for step in range(4):
            if step == first:
                weights, state = deepcopy(net.state_dict()), deepcopy(optimizer.state_dict())
                net.load_state_dict(weights)
                optimizer = way(net.parameters())
                if loads:
                    optimizer.load_state_dict(state)
                around.enter_context(dumpcmp.capture(net, path, **options))
            data = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
            net(data).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return path


MOMENTS: dict[str, tuple[Any, str]] = {
    "Adam": (lambda some: torch.optim.Adam(some, lr=0.1), "exp_avg, exp_avg_sq, step"),
    "momentum": (lambda some: torch.optim.SGD(some, lr=0.1, momentum=0.9), "momentum_buffer"),
}


@pytest.mark.parametrize(("way", "kept"), MOMENTS.values(), ids=MOMENTS)
def test_a_resumed_run_is_held_against_an_uninterrupted_one(
    way: Any, kept: str, tmp_path: Path
) -> None:
    golden = resumed(tmp_path / "g", 0, way, backward=True)
    right = dumpcmp.compare(golden, resumed(tmp_path / "s", 2, way, backward=True))
    assert right.conclusion is Conclusion.SAME, right.headline
    assert {row.verdict for row in right.rows if row.key.op == Effect.OPTIMIZER.op} == {
        Verdict.PASS
    }
    wrong = dumpcmp.compare(golden, resumed(tmp_path / "t", 2, way, loads=False, backward=True))
    assert wrong.exit_code == 1
    said = f": state_before is {kept!r} in golden, 'nothing' in mine"
    assert said in wrong.word


def test_a_missing_clip_is_open(tmp_path: Path) -> None:
    outcome = follow(tmp_path, {"norm": 100.0}, {"norm": None})
    assert outcome.exit_code == 2
    assert "only golden's run shows clip_grad_norm_" in outcome.word


def test_scales_of_losses_are_recorded(tmp_path: Path) -> None:
    trained(tmp_path / "a", scales=True)
    shown = [shown_tree(call) for call in effects_of(tmp_path / "a", Effect.TRAINING)]
    assert "GradScaler(scale=65536.0, found_inf=[0.0])" in shown


def test_generators_that_began_apart_tell_nothing(tmp_path: Path) -> None:
    def run(path: Path, seed: int) -> Path:
        torch.manual_seed(0)
        net = nn.Linear(2, 2)
        torch.manual_seed(seed)
        with dumpcmp.capture(net, path), torch.no_grad():
            net(torch.ones(1, 2))
            torch.rand(seed)
        return path

    outcome = dumpcmp.compare(run(tmp_path / "a", 1), run(tmp_path / "b", 2))
    assert outcome.passed
    (row,) = [row for row in outcome.rows if row.key.op == Effect.GENERATORS.op]
    assert row.verdict is Verdict.SKIPPED


class Drawing(nn.Linear):
    drawn = 0

    def forward(self, x: Tensor) -> Tensor:
        torch.rand(self.drawn)
        return super().forward(x)


@pytest.mark.parametrize(("spare", "drawn", "code"), [(3, 0, 0), (0, 2, 1)])
def test_what_weights_were_made_of_is_not_drawn_by_the_run(
    spare: int, drawn: int, code: int, tmp_path: Path
) -> None:
    def run(path: Path, spare: int, drawn: int) -> Path:
        torch.manual_seed(0)
        with dumpcmp.capture(None, path), torch.no_grad():
            nn.Linear(2, 1 + spare)  # another implementation draws more for weights that it loads
            net = Drawing(2, 2)
            net.drawn = drawn
            net.load_state_dict({"weight": torch.eye(2), "bias": torch.ones(2)})
            net(torch.ones(1, 2))
        return path

    golden = run(tmp_path / "a", 0, 0)
    outcome = dumpcmp.compare(golden, run(tmp_path / "b", spare, drawn))
    assert outcome.exit_code == code, outcome.word


def test_runs_of_other_lengths_have_no_ends_in_common(tmp_path: Path) -> None:
    def run(path: Path, steps: int) -> Path:
        torch.manual_seed(0)
        net = nn.BatchNorm1d(3)
        with dumpcmp.capture(net, path), torch.no_grad():
            for step in range(steps):
                net(torch.full((4, 3), float(step)).mul_(torch.rand(4, 3)))
        return path

    outcome = dumpcmp.compare(run(tmp_path / "a", 3), run(tmp_path / "b", 2), tokens="0-1")
    assert outcome.passed, outcome.word
    (row,) = [row for row in outcome.rows if row.key.op == Effect.STATE.op]
    assert row.verdict is Verdict.SKIPPED


def test_nothing_of_the_capture_stays_behind(tmp_path: Path) -> None:
    from torch.nn.utils import clip_grad
    from torch.optim import optimizer

    before = clip_grad._clip_grads_with_norm_, torch.amp.GradScaler.update
    hooks = dict(optimizer._global_optimizer_post_hooks)
    trained(tmp_path / "a", scales=True)
    assert (clip_grad._clip_grads_with_norm_, torch.amp.GradScaler.update) == before
    assert dict(optimizer._global_optimizer_post_hooks) == hooks


class Sameness(Dataset[Tensor]):
    """Samples that are all the same: only the position tells which was read."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Tensor:
        return torch.ones(4)


class Stateful(DataLoader[Tensor]):
    """A loader that says where it is."""

    said = "shard 0"

    def state_dict(self) -> dict[str, str]:
        return {"shard": self.said}


def fed(path: Path, make: Callable[[], DataLoader[Tensor]], skips: int, first: int = 0) -> Path:
    """Four steps, captured from `first` on; `skips` batches are read over before."""
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = make()
    with ExitStack() as around:
        for step in range(4):
            if step == first:
                around.enter_context(dumpcmp.capture(net, path, backward=True))
                batches = iter(loader)
                for _ in range(skips):
                    next(batches)
            batch = next(batches) if step >= first else torch.ones(2, 4)
            noise = torch.randn(2, 4, generator=torch.Generator().manual_seed(step))
            net(batch + noise).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return path


def _by_hand() -> Any:
    return [torch.ones(2, 4)] * 4


def _other_shard() -> DataLoader[Tensor]:
    loader = Stateful(Sameness(), batch_size=2)
    loader.said = "shard 1"
    return loader


Feeding = tuple[Callable[[], DataLoader[Tensor]], int, int]
_loader: Callable[[], DataLoader[Tensor]] = partial(DataLoader, Sameness(), batch_size=2)
_quiet: Callable[[], DataLoader[Tensor]] = partial(
    DataLoader, Sameness(), batch_size=2, generator=torch.Generator()
)
_rest: Callable[[], DataLoader[Tensor]] = partial(
    DataLoader, Subset(Sameness(), range(4, 10)), batch_size=2
)
_stateful: Callable[[], DataLoader[Tensor]] = partial(Stateful, Sameness(), batch_size=2)
POSITIONS: dict[str, tuple[Feeding, Feeding, str]] = {
    "the same": ((_loader, 0, 0), (_loader, 0, 0), ""),
    "read over": ((_loader, 0, 0), (_loader, 2, 2), ""),
    "the rest": ((_loader, 0, 0), (_rest, 0, 2), ""),
    "from the beginning again": (
        (_loader, 0, 0),
        (_loader, 0, 2),
        "data at token 2: data.samples_left is 4 in golden, 8 in mine",
    ),
    "a state of its own": ((_stateful, 0, 0), (_stateful, 0, 0), ""),
    "another state": ((_stateful, 0, 0), (_other_shard, 0, 0), "data.state['shard'] is 'shard 0'"),
    "no loader": ((_quiet, 0, 0), (_by_hand, 0, 0), ""),
}


@pytest.mark.parametrize(("golden", "target", "said"), POSITIONS.values(), ids=POSITIONS)
def test_a_loader_must_be_as_far(
    golden: Feeding, target: Feeding, said: str, tmp_path: Path
) -> None:
    sides = [fed(tmp_path / str(n), *one) for n, one in enumerate((golden, target))]
    outcome = dumpcmp.compare(*sides)
    assert outcome.exit_code == (1 if said else 0), outcome.headline
    assert said in outcome.word


def test_loaders_are_as_they_were(tmp_path: Path) -> None:
    before = dict(vars(dataloader._BaseDataLoaderIter))
    fed(tmp_path / "d", _loader, 0)
    assert dict(vars(dataloader._BaseDataLoaderIter)) == before


def _stepping(
    path: Path,
    betas: tuple[float, float],
    clips: bool = False,
    spoils: int = -1,
    freezes: bool = False,
    tokens: str | None = None,
) -> Path:
    """Two models with an optimizer each; `betas` are the first one's."""
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), nn.Linear(4, 2)]
    optimizers = [
        torch.optim.AdamW(model.parameters(), lr=0.01, betas=each)
        for model, each in zip(models, (betas, (0.9, 0.9)), strict=True)
    ]
    with dumpcmp.capture(None, path, backward=True, tokens=tokens):
        for step in range(4):
            x = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
            for model, optimizer in zip(models, optimizers, strict=True):
                model(x).square().mean().backward()
                if clips and step and model is models[0]:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
                if freezes:
                    models[0].get_parameter("2.bias").grad = None
                optimizer.step()
                optimizer.zero_grad()
            if step == spoils:
                models[1].get_parameter("weight").data.mul_(1.1)
    return path


def _weights(outcome: Outcome) -> list[Row]:
    return [row for row in outcome.roots if row.key.slot.kind == "param"]


def test_settings_that_differ_are_one_root(tmp_path: Path) -> None:
    golden, target = (_stepping(tmp_path / str(beta), (0.9, beta)) for beta in (0.95, 0.999))
    outcome = dumpcmp.compare(golden, target)
    (root,) = outcome.roots
    assert root.key.op == "<effects>/training" and root.key.step == 0
    assert "AdamW: groups[0]['betas'][1] is 0.95 in golden, 0.999 in mine" in outcome.word
    later = [r for r in outcome.rows if r.key.slot.kind == "param" and r.verdict.fails]
    assert later and all(row.cause == root.key for row in later)


def test_settings_come_before_what_the_run_ends_with(tmp_path: Path) -> None:
    golden, target = (
        _stepping(tmp_path / str(beta), (0.9, beta), tokens="0") for beta in (0.95, 0.999)
    )
    (root,) = dumpcmp.compare(golden, target).roots
    assert root.key.op == "<effects>/training" and root.key.step == 0


def test_ends_that_are_recorded_with_other_tokens_are_not_compared(tmp_path: Path) -> None:
    golden = _stepping(tmp_path / "whole", (0.9, 0.95))
    target = _stepping(tmp_path / "part", (0.9, 0.95), tokens="1")
    for tokens in (None, "1"):
        outcome = dumpcmp.compare(golden, target, tokens=tokens)
        assert outcome.passed, outcome.text()
        said = {row.reason for row in outcome.rows if row.key.op == "<effects>/optimizer"}
        assert "golden's end is recorded with token 3, mine with 1" in said


def test_what_one_side_alone_does_is_told_with_the_first_weight_after_it(tmp_path: Path) -> None:
    golden = _stepping(tmp_path / "g", (0.9, 0.95))
    target = _stepping(tmp_path / "t", (0.9, 0.95), clips=True)
    (weight,) = _weights(dumpcmp.compare(golden, target))
    assert weight.key.step == 2
    assert "only my run shows clip_grad_norm_ at token 1" in weight.reason


def test_weights_of_another_model_do_not_follow_from_settings(tmp_path: Path) -> None:
    golden = _stepping(tmp_path / "g", (0.9, 0.95))
    target = _stepping(tmp_path / "t", (0.9, 0.999), spoils=1)
    weights = _weights(dumpcmp.compare(golden, target))
    assert {(row.key.model, row.key.step) for row in weights} == {("Linear", 2)}


def test_a_weight_that_one_run_did_not_make_does_not_follow_from_settings(tmp_path: Path) -> None:
    golden = _stepping(tmp_path / "g", (0.9, 0.95))
    target = _stepping(tmp_path / "t", (0.9, 0.999), freezes=True)
    weights = _weights(dumpcmp.compare(golden, target))
    assert weights and {str(row.key.slot) for row in weights} == {"param.bias"}
    assert all(row.key.op == "2" for row in weights)


class Plainest(torch.optim.Optimizer):
    """Gradient descent by hand, whose settings have names of their own."""

    def __init__(self, some: Any, lr: float, downward: float = -1.0) -> None:
        super().__init__(some, {"lr": lr, "downward": downward})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for one in group["params"]:
                self.state[one]["calls"] = self.state[one].get("calls", 0) + 1
                one.add_(one.grad, alpha=group["downward"] * group["lr"])


@pytest.mark.parametrize(("factor", "code"), [(-1.0, 0), (-1.01, 1)])
def test_another_class_of_optimizer_is_told_by_the_weights_that_it_makes(
    factor: float, code: int, tmp_path: Path
) -> None:
    def by_hand(some: Any, lr: float) -> torch.optim.Optimizer:
        return Plainest(some, lr, factor)

    outcome = follow(tmp_path, {"way": torch.optim.SGD}, {"way": by_hand})
    assert outcome.exit_code == code, outcome.word
    told = [row.reason for row in outcome.rows if row.key.op == Effect.TRAINING.op]
    assert any("golden trains with SGD, mine with Plainest" in reason for reason in told)
