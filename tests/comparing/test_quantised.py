"""A quantised run: levels that are declared explain what rounding to them does, and no more."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dumpcmp
from benchmarks.quantised import SCHEMES, Scheme, decoder, dumped, is_named, quantised
from dumpcmp.nouns.row import Verdict
from tests.choosing_cases import often

AT = "layers.1.up"


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return decoder().build()


@pytest.fixture(scope="module")
def golden(model: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dumped(model, decoder().given, tmp_path_factory.mktemp("golden") / "g")


LONG = (
    "int8 weights, by rows",
    "uint4 weights, with a zero point",
    "the same, codes named weight",
    "fp8 and back, weights and inputs",
    "int8 and back, weights and inputs",
    "fp8 weights",
)
OFTEN = [scheme.name for scheme in SCHEMES if scheme.name not in LONG]


@pytest.mark.parametrize("scheme", often(SCHEMES, *OFTEN), ids=lambda scheme: scheme.name)
def test_sound_is_the_same(scheme: Scheme, model: nn.Module, golden: Path, tmp_path: Path) -> None:
    target = dumped(quantised(model, scheme), decoder().given, tmp_path / "t")
    outcome = dumpcmp.compare(golden, target, allow=scheme.word)
    assert outcome.passed, outcome.headline
    plain = dumpcmp.compare(golden, target)
    assert not plain.passed, "nobody has said that it is quantised"


CASES = [
    (scheme, fault)
    for at, scheme in enumerate(SCHEMES)
    for fault in scheme.faults[at % 2 :: 2]  # the others are in the benchmark
]
CHOSEN = CASES[::4]
AT_LENGTH = [pytest.param(*case, marks=pytest.mark.long) for case in CASES if case not in CHOSEN]


def name_of(one: Scheme | str) -> str:
    return one if isinstance(one, str) else one.name


@pytest.mark.parametrize(("scheme", "fault"), [*CHOSEN, *AT_LENGTH], ids=name_of)
def test_faults_are_named(
    scheme: Scheme, fault: str, model: nn.Module, golden: Path, tmp_path: Path
) -> None:
    target = dumped(quantised(model, scheme, AT, fault), decoder().given, tmp_path / "t")
    outcome = dumpcmp.compare(golden, target, allow=scheme.word)
    if fault == "no bias":  # nobody sees that the bias is no number that the levels hide
        assert outcome.conclusion is dumpcmp.Conclusion.UNKNOWN, outcome.headline
        assert "nothing shows that fp8 explains what output.0 differs in" in outcome.headline
    else:
        assert is_named(outcome, AT), outcome.headline


def test_levels_are_told_where_nobody_declared_them(
    model: nn.Module, golden: Path, tmp_path: Path
) -> None:
    target = dumped(quantised(model, SCHEMES[0]), decoder().given, tmp_path / "t")
    outcome = dumpcmp.compare(golden, target)
    assert "to the nearest level of int8" in outcome.headline
    assert "--allow int8" in outcome.headline


def test_what_was_rounded_says_to_what(model: nn.Module, golden: Path, tmp_path: Path) -> None:
    target = dumped(quantised(model, SCHEMES[0]), decoder().given, tmp_path / "t")
    outcome = dumpcmp.compare(golden, target, allow="int8")
    weights = [row for row in outcome.rows if row.key.slot == "param.weight" and row.key.op == AT]
    assert {row.verdict for row in weights} == {Verdict.DTYPE}
    assert {row.judgement.reason for row in weights} == {
        "golden's to the nearest level of int8, a scale for each row"
    }
    assert any("quantised" in remark for remark in outcome.remarks)


class Cached(nn.Module):
    """Attention over what it keeps of earlier steps, which `keep` may round."""

    def __init__(self, keep: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.qkv = nn.Embedding(50, 32), nn.Linear(32, 96)
        self.head, self.keep = nn.Linear(32, 50), keep

    def forward(self, ids: Tensor, kept: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        q, k, v = self.qkv(self.words(ids)).chunk(3, -1)
        kept = [torch.cat([old, self.keep(new)], 1) for old, new in zip(kept, (k, v), strict=True)]
        return self.head(F.scaled_dot_product_attention(q, kept[0], kept[1])), kept


def rounded(x: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().to(torch.int8).to(x.dtype) * scale


def badly(x: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().to(torch.int8).to(x.dtype) * scale.roll(1, 1)


def decoded(keep: Callable[[Tensor], Tensor], path: Path) -> Path:
    model, kept = Cached(keep).eval(), [torch.zeros(1, 0, 32)] * 2
    with torch.no_grad(), dumpcmp.capture(model, path):
        for ids in ([[3, 1, 4, 1, 5]], [[9]], [[2]], [[6]]):
            _, kept = model(torch.tensor(ids), kept)
    return path


def test_a_cache_that_was_rounded_is_carried_on(tmp_path: Path) -> None:
    golden = decoded(lambda x: x, tmp_path / "g")
    outcome = dumpcmp.compare(golden, decoded(rounded, tmp_path / "t"), allow="int8")
    assert outcome.passed, outcome.headline
    wrong = dumpcmp.compare(golden, decoded(badly, tmp_path / "w"), allow="int8")
    assert not wrong.passed
    assert wrong.first_divergence is not None
    assert wrong.first_divergence.key.step == 0


def try_engine(name: str) -> str:
    """Multiply by a tiny quantised weight with an engine of torch; returns why it cannot, or ""."""
    try:
        torch.backends.quantized.engine = name
        weight = torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(weight, None)
        torch.ops.quantized.linear_dynamic(torch.ones(1, 2), packed)
    except RuntimeError as error:  # such as "unknown architecture": it is listed all the same
        return f"{name}: {str(error).splitlines()[0]}"
    return ""


@contextmanager
def quantized_engine(names: Sequence[str]) -> Iterator[str]:
    """Set the first of `names` that works on this machine; skip the test where none does."""
    before, reasons = torch.backends.quantized.engine, []
    try:
        for name in names:
            if not (reason := try_engine(name)):
                yield name
                return
            reasons.append(reason)
        pytest.skip(f"no quantised engine of torch works here: {'; '.join(reasons)}")
    finally:
        torch.backends.quantized.engine = before


@pytest.fixture
def engine() -> Iterator[str]:
    with quantized_engine(torch.backends.quantized.supported_engines) as name:
        yield name


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_engine_that_does_not_work_is_passed_over(engine: str) -> None:
    with quantized_engine(["no such engine", engine]) as chosen:
        assert chosen == engine
    with (
        pytest.raises(pytest.skip.Exception, match="no such engine: "),
        quantized_engine(["no such engine"]),
    ):
        pass
    assert torch.backends.quantized.engine == engine


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.usefixtures("engine")
def test_a_dynamic_layer_of_torch_hides_its_weight(
    model: nn.Module, golden: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch.ao.quantization")
    for spoil, is_sound in ((1.0, True), (1.05, False)):
        other = copy.deepcopy(model)
        other.get_parameter(f"{AT}.weight").data.mul_(spoil)
        to_dynamic: Callable[..., nn.Module] = torch.ao.quantization.quantize_dynamic
        other = to_dynamic(other, {nn.Linear}, torch.qint8)
        target = dumped(other, decoder().given, tmp_path / str(spoil))
        outcome = dumpcmp.compare(golden, target, allow="int8")
        assert outcome.passed is is_sound, outcome.headline
        assert is_sound or is_named(outcome, AT)


def test_tied_weights_are_out_of_sight_once(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.words, self.head = nn.Embedding(64, 32), nn.Linear(32, 64, bias=False)
            self.head.weight = self.words.weight

        def forward(self, ids: Tensor) -> Tensor:
            given: Tensor = self.head(self.words(ids))
            return given

    model, given = Tied().eval(), {"ids": torch.arange(12)[None]}
    golden = dumped(model, given, tmp_path / "g")
    inner = next(scheme for scheme in SCHEMES if scheme.name == "int8 weights and inputs")
    target = dumped(quantised(model, inner), given, tmp_path / "t")
    assert dumpcmp.compare(golden, target, allow="int8").passed


def test_integers_that_a_model_gives_are_no_codes(tmp_path: Path) -> None:
    class Head(nn.Module):
        def __init__(self, dtype: torch.dtype) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.line = nn.Linear(16, 16)
            self.like = torch.zeros(1, dtype=dtype)

        def forward(self, x: Tensor) -> Tensor:
            given: Tensor = self.line(x)
            return (given * 10).type_as(self.like)

    given = {"x": torch.ones(2, 16).cumsum(1)}
    golden = dumped(Head(torch.float32), given, tmp_path / "g")
    target = dumped(Head(torch.int8), given, tmp_path / "t")
    outcome = dumpcmp.compare(golden, target, allow="int8")
    assert not outcome.passed, outcome.headline


def scheme_named(name: str) -> Scheme:
    return next(scheme for scheme in SCHEMES if scheme.name == name)


def test_floats_of_8_bits_explain_nothing_that_nobody_declared(
    model: nn.Module, golden: Path, tmp_path: Path
) -> None:
    scheme = scheme_named("fp8 weights and inputs")
    target = dumped(quantised(model, scheme, AT, "no bias"), decoder().given, tmp_path / "t")
    outcome = dumpcmp.compare(golden, target)
    assert not outcome.passed, outcome.headline
    assert any("--allow fp8, if that is meant" in remark for remark in outcome.remarks)
    both = dumped(quantised(model, scheme), decoder().given, tmp_path / "b")
    again = dumped(quantised(model, scheme), decoder().given, tmp_path / "a")
    remarks = dumpcmp.compare(both, again).remarks
    assert not any("--allow fp8" in remark for remark in remarks), "both sides have them"


@pytest.mark.parametrize("name", ["fp8 weights", "fp8 and back, weights and inputs"])
def test_what_is_seen_in_all_its_digits_rounds_no_more(name: str, tmp_path: Path) -> None:
    """The dispatcher adds no bias in the call, so that its numbers have to tell."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)).eval()
    given = {"input": torch.randn(24, 64)}
    golden = dumped(model, given, tmp_path / "g", "aten")
    for fault in ("", "no bias"):
        target = quantised(model, scheme_named(name), "2", fault)
        path = dumped(target, given, tmp_path / f"t{fault}", "aten")
        outcome = dumpcmp.compare(golden, path, allow="fp8")
        assert outcome.passed is (not fault), outcome.headline


ON_GPU = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ],
)


@pytest.mark.parametrize("device", ["cpu", ON_GPU])
@pytest.mark.parametrize("mode", ["eager", "aten"])
def test_codes_may_be_floats_of_8_bits(mode: str, device: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)).eval().bfloat16()
    given = {"input": torch.randn(32, 64, dtype=torch.bfloat16)}
    golden = dumped(model, given, tmp_path / "g", mode)
    there = {"input": given["input"].to(device)}
    scheme = scheme_named("fp8 weights and inputs")
    for fault in ("", "scale x 1.05"):
        target = quantised(model, scheme, "2", fault).to(device)
        path = dumped(target, there, tmp_path / f"t{fault}", mode)
        outcome = dumpcmp.compare(golden, path, allow="fp8")
        assert outcome.passed is (not fault), outcome.headline
    here = dumped(quantised(model, scheme), given, tmp_path / "h", mode)
    assert dumpcmp.compare(here, tmp_path / "t").passed, "both round to 8 bits"


def trained_once(model: nn.Module, path: Path) -> Path:
    with dumpcmp.capture(model, path, backward=True):
        model(**decoder().given).square().mean().backward()
    return path


def test_backward_passes_may_round_what_they_multiply(model: nn.Module, tmp_path: Path) -> None:
    golden = trained_once(copy.deepcopy(model), tmp_path / "g")
    inside = scheme_named("fp8 inside of a function")
    for fault in ("", "gradient x 1.05"):
        target = quantised(model, inside, "layers.1.down", fault)
        path = trained_once(target, tmp_path / f"t{fault}")
        outcome = dumpcmp.compare(golden, path, allow="fp8")
        assert outcome.passed is (not fault), outcome.headline
        assert not fault or is_named(outcome, "layers.1.down"), outcome.headline
