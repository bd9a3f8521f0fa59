"""Wrappers that spread a batch: what is inside of them compares with the model on one device."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

import dumpcmp
from dumpcmp.archive.read.reader import Archive
from dumpcmp.nouns.errors import CaptureError, CaptureWarning

two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        y: Tensor = self.last(torch.relu(self.norm(self.first(x)))) * scale
        return y


def copied(module: nn.Module) -> nn.Module:
    """A replica as torch makes them: modules without parameters, which they have as tensors."""
    modules = list(module.modules())
    copies: dict[nn.Module, Any] = {}
    for each in modules:
        copies[each] = each._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
    for each, copy in copies.items():
        for name, child in each._modules.items():
            setattr(copy, name, copies[child] if child is not None else None)
        for name, parameter in each._parameters.items():
            setattr(copy, name, parameter * 1 if parameter is not None else None)
    replica: nn.Module = copies[module]
    return replica


class OnCpu(nn.DataParallel[Net]):
    """DataParallel over three devices of a machine that has none."""

    def __init__(self, module: Net, wrong: int | None = None) -> None:
        nn.Module.__init__(self)
        self.module, self.device_ids, self.wrong = module, [0, 1, 2], wrong

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        replicas: list[Any] = [copied(self.module) for _ in self.device_ids]
        if self.wrong is not None:
            replicas[self.wrong].last.weight = replicas[self.wrong].last.weight * 1.01
        shares = [(share,) for share in x.tensor_split(len(replicas))]
        return torch.cat(self.parallel_apply(replicas, shares, [kwargs] * len(replicas)))


def applied(modules: Any, inputs: Any, kwargs: Any, _devices: Any) -> list[Any]:
    return [module(*i, **k) for module, i, k in zip(modules, inputs, kwargs, strict=True)]


@pytest.fixture
def cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.parallel, "parallel_apply", applied)
    monkeypatch.setattr(
        nn.DataParallel, "parallel_apply", lambda _, modules, i, k: applied(modules, i, k, ())
    )


def dumped(model: nn.Module, called: nn.Module, path: Path, backward: bool) -> list[Tensor]:
    torch.manual_seed(0)
    results = []
    with dumpcmp.capture(model, path, backward=backward):
        for _ in range(2):
            model.zero_grad()
            results.append(called(torch.randn(7, 8), scale=2.0))
            if backward:
                results[-1].square().sum().backward()
    return [result.detach() for result in results]


@pytest.mark.usefixtures("cpus")
@pytest.mark.parametrize("backward", [False, True])
def test_replicas_compare_with_one_device(backward: bool, tmp_path: Path) -> None:
    net = Net()
    whole = dumped(net, net, tmp_path / "one", backward)
    spread = dumped(parallel := OnCpu(net), parallel, tmp_path / "three", backward)
    assert all(map(torch.allclose, whole, spread)) and torch.equal(
        spread[0], dumped(parallel, parallel, tmp_path / "again", backward)[0]
    )
    archive = Archive(tmp_path / "three")
    assert {key.model for key in archive} == {"Net"} and {key.step for key in archive} == {
        *range(6)
    }
    outcome = dumpcmp.compare(tmp_path / "one", tmp_path / "three")
    assert outcome.passed and not outcome.missing, outcome
    assert {row.key.op for row in outcome.rows} >= {"first/linear", "last/linear", "<root>/mul"}
    parallel.wrong = 1
    dumped(parallel, parallel, tmp_path / "wrong", backward)
    root = dumpcmp.compare(tmp_path / "one", tmp_path / "wrong").first_divergence
    assert root is not None and root.key.op.module == "last", root
    assert "golden has no such numbers" in root.reason  # a weight of one replica


@pytest.mark.usefixtures("cpus")
def test_replicas_inside_of_a_model_are_told_of(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), OnCpu(Net()))
    told = "1 call of a DataParallel inside of a model"
    with pytest.warns(CaptureWarning, match=told), dumpcmp.capture(model, tmp_path / "d"):
        model(torch.randn(7, 8))


def test_shares_of_a_batch_compare_with_all_of_it(tmp_path: Path) -> None:
    net, x = Net(), torch.randn(8, 8)
    with dumpcmp.capture(net, tmp_path / "whole"):
        net(x)
    with dumpcmp.capture(net, tmp_path / "shares"):
        for number, share in enumerate(x.chunk(4)):
            with dumpcmp.microbatch(number, of=4):
                net(share)
    outcome = dumpcmp.compare(tmp_path / "whole", tmp_path / "shares")
    assert outcome.passed and len(outcome.rows) == len(Archive(tmp_path / "whole"))
    told = "a batch in 4 shares has no share 4"
    with pytest.raises(CaptureError, match=told), dumpcmp.microbatch(4, of=4):
        pass


def test_one_device_is_its_module(tmp_path: Path) -> None:
    net = Net()
    dumped(net, net, tmp_path / "one", False)
    dumped(parallel := nn.DataParallel(net), parallel, tmp_path / "same", False)
    assert dumpcmp.compare(tmp_path / "one", tmp_path / "same").passed


def compiled(model: nn.Module) -> nn.Module:
    made: nn.Module = torch.compile(model, backend="eager")  # type: ignore[assignment]
    return made


def compiled_inside(model: nn.Module) -> nn.Module:
    model.norm = compiled(model.get_submodule("norm"))
    return DistributedDataParallel(model)


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "DDP": DistributedDataParallel,
    "FSDP": lambda model: FullyShardedDataParallel(model, device_id=torch.device("cpu")),
    "compiled": compiled,
    "DDP of compiled": lambda model: DistributedDataParallel(compiled(model)),
    "compiled DDP": lambda model: compiled(DistributedDataParallel(model)),
    "compiled inside": compiled_inside,
}


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/s", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapper_that_is_captured_is_its_module(wrapper: str, tmp_path: Path) -> None:
    net = Net()
    dumped(net, net, tmp_path / "one", False)
    wrapped = WRAPPERS[wrapper](net)
    dumped(wrapped, wrapped, tmp_path / "same", False)
    one, same = Archive(tmp_path / "one"), Archive(tmp_path / "same")
    ran = {(key.model, key.op) for key in one if not key.slot.is_weight}
    assert ran == {(key.model, key.op) for key in same if not key.slot.is_weight}
    assert dumpcmp.compare(tmp_path / "one", tmp_path / "same").passed


@pytest.mark.usefixtures("one_rank")
def test_a_wrapper_that_is_checked_is_its_module() -> None:
    wrapped = DistributedDataParallel(Net())
    with dumpcmp.check(wrapped) as checkup:
        wrapped(torch.randn(7, 8))
    assert checkup.headline.startswith("SAME")


@pytest.mark.gpu
@two_gpus
def test_two_devices_compare_with_one(tmp_path: Path) -> None:
    net, x = Net().cuda(), torch.randn(7, 8, device="cuda")
    parallel = nn.DataParallel(net, device_ids=[0, 1])
    with torch.no_grad():
        before = parallel(x)
        with dumpcmp.capture(net, tmp_path / "one"):
            net(x)
        with dumpcmp.capture(parallel, tmp_path / "two"):
            assert torch.equal(parallel(x), before)
    archive = Archive(tmp_path / "two")
    assert {archive[key].device for key in archive} == {"cuda:0", "cuda:1"}
    assert dumpcmp.compare(tmp_path / "one", tmp_path / "two").passed
