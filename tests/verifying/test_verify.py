"""verify() says of each value whether the target's is golden's, by the rule that was asked for."""

import warnings
from collections import namedtuple
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import dumpcmp
from dumpcmp import (
    AllCloseValueChecker,
    AutomaticValueChecker,
    CosineChecker,
    ExactChecker,
    Fp64Checker,
    FullValueChecker,
    PartitionConfig,
    RoundingChecker,
    TensorInfo,
    Verdict,
    VerificationError,
    VerifyConfig,
    verify,
)
from dumpcmp.judge.conditions import Checker
from dumpcmp.nouns.errors import CheckError, SelectionError, VerificationWarning
from dumpcmp.verifying import report_on

X = torch.linspace(-3, 3, 4096).reshape(64, 64)


def giving(value: Any) -> Callable[[torch.Tensor], Any]:
    """A model that gives `value`, whatever it gets."""

    def give(x: torch.Tensor) -> Any:
        return value

    return give


class Add(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a + b


def verdicts(golden: Any, target: Any, config: VerifyConfig | None = None) -> str:
    """The verdicts on two constants, and whether verify raises or warns."""
    config = config or VerifyConfig()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            report = verify([X], giving(golden), giving(target), config)
        except VerificationError as error:
            return str(error).splitlines()[1].split(";")[0].strip()
    said = " ".join(row.verdict for row in report.rows)
    doubts = any(issubclass(warning.category, VerificationWarning) for warning in caught)
    return said + (" warns" if doubts else "")


NOISE = 1e-3 * torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
NAN = X.clone()
NAN[3, 4] = torch.nan
NAN_ELSEWHERE = X.clone()
NAN_ELSEWHERE[3, 5] = torch.nan
OUTLIER = X.clone()
OUTLIER[5, 5] += 9
CONSTANT_AND_NAN = torch.tensor([1.0, 1.0, torch.nan])
FLIPPED = X > 0
FLIPPED[0, 0] = True
AUTO, FULL, CLOSE = AutomaticValueChecker, FullValueChecker, AllCloseValueChecker

CHECKERS: dict[str, tuple[torch.Tensor, torch.Tensor, Checker | Sequence[Checker], str]] = {
    "equal": (X, X, AUTO(), "PASS"),
    "noise is correlated": (X, X + NOISE, AUTO(), "PASS warns"),
    "noise is not close": (X, X + NOISE, FULL(), "FAIL"),
    "noise is close at rtol 1e-1": (X.exp(), X.exp() + NOISE, FULL(rtol=1e-1), "PASS"),
    "noise is close at atol 1e-2": (X, X + NOISE, CLOSE(atol=1e-2), "PASS"),
    "a lower pcc": (X, X + 1e3 * NOISE, AUTO(pcc=0.8), "PASS warns"),
    "the default pcc": (X, X + 1e3 * NOISE, AUTO(), "FAIL"),
    "reversed": (X, -X, AUTO(), "FAIL"),
    "2x + 5": (X, 2 * X + 5, AUTO(), "PASS warns"),
    "7x": (X, 7 * X, AUTO(), "PASS warns"),
    "2x + 5 elementwise": (X, 2 * X + 5, FULL(), "FAIL"),
    "one outlier": (X, OUTLIER, AUTO(), "PASS warns"),
    "two elements": (torch.tensor([1.0, 2.0]), torch.tensor([3.0, 9.0]), AUTO(), "PASS warns"),
    "one element": (torch.tensor([1.0]), torch.tensor([1.1]), AUTO(), "FAIL"),
    "one element, close": (torch.tensor([1.0]), torch.tensor([1.1]), AUTO(rtol=0.2), "PASS"),
    "scalar": (torch.tensor(1.0), torch.tensor(1.1), AUTO(), "FAIL"),
    "constants": (torch.ones(9), torch.ones(9) * 3, AUTO(), "FAIL"),
    "a constant for a variable": (X, torch.ones(64, 64), AUTO(), "FAIL"),
    "nan at the same place": (NAN, NAN + 0, AUTO(), "PASS"),
    "nan elsewhere": (NAN, NAN_ELSEWHERE, AUTO(), "NONFINITE"),
    "nan for a number": (X, NAN, AUTO(pcc=-1.0), "NONFINITE"),
    "nan and other constants": (CONSTANT_AND_NAN, CONSTANT_AND_NAN * 7, AUTO(), "FAIL"),
    "integers, close": (torch.arange(3), torch.tensor([0, 1, 3]), CLOSE(atol=9.0), "FAIL"),
    "equal integers, close": (torch.arange(3), torch.arange(3), CLOSE(), "PASS"),
    "all nan": (torch.full((3,), torch.nan), torch.full((3,), torch.nan), AUTO(), "INCONCLUSIVE"),
    "inf of another sign": (torch.tensor([1.0, torch.inf]), torch.tensor([1.0, -torch.inf]),
                            AUTO(), "NONFINITE"),
    "integers off by one": (torch.tensor([5, 9, 1000]), torch.tensor([5, 9, 1001]), AUTO(), "FAIL"),
    "large integers": (torch.tensor([100000]), torch.tensor([100001]), FULL(), "FAIL"),
    "bytes": (torch.ones(3, dtype=torch.uint8), 7 * torch.ones(3, dtype=torch.uint8), AUTO(),
              "FAIL"),
    "booleans, one in 4096": (X > 0, FLIPPED, AUTO(), "PASS warns"),
    "booleans, stricter": (X > 0, FLIPPED, AUTO(dissimilarity_threshold=0.0),
                           "FAIL"),
    "booleans, one in 9": (torch.ones(9) > 0, torch.arange(9) > 0, AUTO(), "FAIL"),
    "cosine is blind to scale": (X, 3 * X, CosineChecker(), "PASS warns"),
    "cosine sees direction": (X, X + 1, CosineChecker(0.999), "FAIL"),
    "exact": (X, X + 0, ExactChecker(), "PASS"),
    "one bit": (X, torch.nextafter(X, X + 1), ExactChecker(), "FAIL"),
    "pcc, rounding": (X, torch.nextafter(X, X + 1), AUTO(), "PASS"),
    "rounding": (X, torch.nextafter(X, X + 1), RoundingChecker(), "PASS"),
    "not rounding": (X, X * 1.001, RoundingChecker(), "FAIL"),
    "all of several": (X, 3 * X, (CosineChecker(), AUTO(), CLOSE()), "FAIL"),
    "several that pass": (X, X + NOISE, (CosineChecker(0.9), CLOSE(atol=1e-2)), "PASS"),
}  # fmt: skip


@pytest.mark.parametrize("case", CHECKERS)
def test_each_checker_says(case: str) -> None:
    golden, target, checker, said = CHECKERS[case]
    result = verdicts(golden, target, VerifyConfig(value_checker=checker))
    assert result.removeprefix("output.0: ") == said


CONFIGS = {
    "shapes that broadcast": (X, X[:1], VerifyConfig(), "output.0: SHAPE"),
    "shapes that broadcast, unchecked": (
        X, X[:1], VerifyConfig(verify_shape=False), "output.0: SHAPE",
    ),
    "another shape": (X, X.flatten(), VerifyConfig(), "output.0: SHAPE"),
    "another shape, unchecked": (X, X.flatten(), VerifyConfig(verify_shape=False), "PASS"),
    "dtype": (X, X.double(), VerifyConfig(), "output.0: DTYPE"),
    "dtype, unchecked": (X, X.double(), VerifyConfig(verify_dtype=False), "DTYPE"),
    "dtype, unchecked, wrong": (
        X, -X.double(), VerifyConfig(verify_dtype=False), "output.0: FAIL",
    ),
    "values": (X, -X, VerifyConfig(), "output.0: FAIL"),
    "values, unchecked": (X, -X, VerifyConfig(verify_values=False), "PASS"),
    "values unchecked, dtype checked": (
        X, -X.double(), VerifyConfig(verify_values=False), "output.0: DTYPE",
    ),
    "one output less": ((X, X), (X,), VerifyConfig(), "output.1: UNPAIRED"),
    "one output less, unchecked": ((X, X), (X,), VerifyConfig(verify_size=False), "PASS UNPAIRED"),
    "one output more": ((X,), (X, X), VerifyConfig(), "output.1: UNPAIRED"),
    "switched off": (X, -X, VerifyConfig(enabled=False), ""),
    "strides": (X, X.t().contiguous().t(), VerifyConfig(), "PASS"),
    "strides, checked": (
        X, X.t().contiguous().t(), VerifyConfig(verify_stride=True), "output.0: FAIL",
    ),
    "nothing but emptiness": (
        torch.empty(0), torch.empty(0), VerifyConfig(),
        "to find the op: dumpcmp.explain(inputs, golden, target), or from a shell",
    ),
    "emptiness beside a value": ((X, torch.empty(0)), (X, torch.empty(0)), VerifyConfig(),
                                 "PASS EMPTY"),
    "another string": ("a", "b", VerifyConfig(), "output.0: FAIL"),
    "None for a tensor": (X, None, VerifyConfig(), "output.0: FAIL"),
    "numbers": ((1, 2.0, True), (1, 2.0, True), VerifyConfig(), "PASS PASS PASS"),
    "another number": ((1, 2.0), (1, 2.5), VerifyConfig(), "output.1: FAIL"),
    "arrays": (X.numpy(), X.numpy() + 0, VerifyConfig(), "PASS"),
    "another array": (X.numpy(), -X.numpy(), VerifyConfig(), "output.0: FAIL"),
    "sparse tensors": (X.to_sparse(), (-X).to_sparse(), VerifyConfig(), "output.0: FAIL"),
    "nested tensors": (
        torch.nested.nested_tensor([X, X[:2]]), torch.nested.nested_tensor([X, X[:2]]),
        VerifyConfig(), "PASS PASS",
    ),
    "another component": (
        torch.nested.nested_tensor([X, X[:2]]), torch.nested.nested_tensor([X, -X[:2]]),
        VerifyConfig(), "output.0.1: FAIL",
    ),
    "a component less, jagged": (
        torch.nested.nested_tensor([X, X[:2]], layout=torch.jagged),
        torch.nested.nested_tensor([X], layout=torch.jagged),
        VerifyConfig(), "output.0.1: UNPAIRED",
    ),
    "a dtype that cannot be measured": (
        X.to(torch.float8_e4m3fnuz), X.to(torch.float8_e4m3fnuz), VerifyConfig(),
        "output.0: ERROR",
    ),
    "sets": ({1, 2}, {1, 2}, VerifyConfig(), "PASS"),
    "something opaque": (print, print, VerifyConfig(), "output.0: INCONCLUSIVE"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIGS)
def test_each_flag_checks_what_it_says(case: str) -> None:
    golden, target, config, said = CONFIGS[case]
    assert verdicts(golden, target, config) == said


LOSS = torch.tensor(4.8436)


@pytest.mark.parametrize("checker", [AutomaticValueChecker(), RoundingChecker()])
def test_a_value_may_differ_by_what_it_was_computed_from(checker: Any) -> None:
    """A loss in float32 over bfloat16 logits may differ by their rounding; an index may not."""
    config = VerifyConfig(value_checker=checker)
    logits = X.bfloat16()
    verify([X], giving((logits, LOSS)), giving((logits, LOSS * 1.0001)), config)
    for wrong in (logits, LOSS * 1.5), (logits.double(), LOSS * 1.0001):
        with pytest.raises(VerificationError):
            verify([X], giving((wrong[0], LOSS)), giving(wrong), config)
    index = torch.arange(10000)
    with pytest.raises(VerificationError, match=r"output\.1: FAIL"):
        verify([X], giving((logits, index)), giving((logits, index + (index == 9999))), config)


def test_the_default_rule_is_rounding_and_tt_forges_have_their_own_defaults() -> None:
    config = VerifyConfig()
    assert (config.enabled, config.verify_size, config.verify_dtype, config.verify_shape) == (
        True,
    ) * 4
    assert config.verify_values
    assert config.value_checker == RoundingChecker()
    assert AutomaticValueChecker() == AutomaticValueChecker(0.99, 1e-5, 1e-8, 1e-3)
    assert FullValueChecker() == FullValueChecker(0.99, 1e-5, 1e-8, 1e-3)
    assert AllCloseValueChecker() == AllCloseValueChecker(1e-5, 1e-8)


def test_an_addition() -> None:
    inputs = [torch.rand(2, 32, 32), torch.rand(2, 32, 32)]
    compiled = torch.compile(Add(), backend="aot_eager")
    assert verify(inputs, Add(), compiled).passed
    assert verify(dict(zip("ab", inputs, strict=True)), Add(), compiled)
    with pytest.raises(ValueError, match=r"output\.0: FAIL"):
        verify(inputs, Add(), lambda a, b: a - b)


@dataclass
class Answer:
    logits: torch.Tensor
    past: tuple[torch.Tensor, ...]


Point = namedtuple("Point", "x y")


def test_gradients_through_a_nested_output_are_compared() -> None:
    def nested(x: torch.Tensor) -> torch.Tensor:
        return torch.nested.as_nested_tensor([x, 2 * x[:2]])

    def wrong(x: torch.Tensor) -> torch.Tensor:
        return torch.nested.as_nested_tensor([x, x[:2] + x[:2].detach()])

    x = torch.randn(3, 4).requires_grad_()
    report = report_on([x], nested, wrong, VerifyConfig(backward=True))
    assert [row.key.slot for row in report.failures] == ["grad_input.0"]


def test_nested_outputs_are_compared_by_path() -> None:
    golden = {"answer": Answer(X, (X, X)), "points": [Point(X, X)]}
    target = {"answer": Answer(X, (X, -X)), "points": [Point(X, -X)]}
    with pytest.raises(VerificationError) as caught:
        verify([X], giving(golden), giving(target))
    assert "2 of 5 values differ" in str(caught.value)
    assert "output.answer.past.1: FAIL" in str(caught.value)
    assert "output.points.0.y: FAIL" in str(caught.value)


def test_the_worst_three_are_named_and_how_to_go_on() -> None:
    golden = tuple(X for _ in range(5))
    target = (X, X + 1e3 * NOISE, X + 5e3 * NOISE, NAN, -X)
    with pytest.raises(VerificationError) as caught:
        verify([X], giving(golden), giving(target))
    lines = str(caught.value).splitlines()
    assert lines[0] == "give against give: 4 of 5 values differ"
    assert [line.split()[0] for line in lines[1:4]] == ["output.3:", "output.2:", "output.4:"]
    assert "and 1 more" in lines[4]
    assert {"dumpcmp dump", "dumpcmp compare"} <= {" ".join(line.split()[:2]) for line in lines}


def test_the_report_reads_prints_and_tabulates() -> None:
    report = verify([X], giving((X, X)), giving((X, X + NOISE)), VerifyConfig(value_checker=AUTO()))
    assert repr(report).startswith("give against give: all 2 values agree")
    assert "output.1  PASS" in repr(report)
    assert report._repr_html_().count("<tr>") == 3
    table = report.to_pandas()
    assert isinstance(table, pd.DataFrame)
    assert list(table["slot"]) == ["output.0", "output.1"]
    assert table["max_abs_diff"][1] == pytest.approx(NOISE.abs().max().item(), rel=1e-3)
    report.raise_for_status()


def test_a_report_answers_by_the_words_of_every_answer() -> None:
    same, different, nothing = (
        report_on([X], giving(a), giving(b))
        for a, b in [([X] * 50, [X] * 50), ([X] * 50, [2 * X] * 50), (X[:0], X[:0])]
    )
    assert [report.exit_code for report in (same, different, nothing)] == [0, 1, 2]
    assert [report.passed for report in (same, different, nothing)] == [True, False, False]
    assert [bool(report) for report in (same, different, nothing)] == [True, False, False]
    assert different.tally[Verdict.FAIL] == len(different.failures) == 50
    for report in (different, nothing):
        with pytest.raises(VerificationError, match=r"50 of 50 values|nothing was compared"):
            report.raise_for_status()
    for report in (same, different):
        assert len(repr(report).splitlines()) == 1 + 1 + 20 + 1  # headline, columns, rows, the rest
        assert len(report.text().splitlines()) == 1 + 1 + 50


def test_a_config_of_partitions_is_refused_by_name() -> None:
    with pytest.raises(CheckError, match="PartitionConfig") as caught:
        config = PartitionConfig("torch.neg", [TensorInfo("shape", (2,))])
        verify([X], giving(X), giving(X), config)  # type: ignore[arg-type]
    assert "VerifyConfig" in caught.value.hint
    assert "verify_partition_options" in caught.value.hint


def test_a_switched_off_report_does_not_say_that_it_passed() -> None:
    report = verify([X], giving(X), giving(-X), VerifyConfig(enabled=False))
    report.raise_for_status()
    assert not report.passed
    assert "switched off" in repr(report)


def test_what_the_target_raises_is_its_difference() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    with pytest.raises(VerificationError, match="RuntimeError: no such kernel") as caught:
        verify([X], giving(X), broken)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(RuntimeError, match="no such kernel"):
        verify([X], broken, giving(X))


WRONG_USES: dict[str, tuple[Callable[[], object], type[Exception]]] = {
    "no inputs": (lambda: verify([], Add(), Add()), ValueError),
    "no model": (lambda: verify([X], X, Add()), TypeError),  # type: ignore[arg-type]
    "models first": (lambda: verify(Add(), [X], Add()), TypeError),  # type: ignore[arg-type]
    "a number": (lambda: verify(3, Add(), Add()), CheckError),
    "no gradient": (lambda: verify([X], giving(X), giving(X), VerifyConfig(backward=True)),
                    CheckError),
    "unknown reference": (lambda: VerifyConfig(reference="float32"), CheckError),  # type: ignore[arg-type]
    "no checker": (lambda: VerifyConfig(value_checker=()), CheckError),
    "no noise": (lambda: VerifyConfig(noise=float("nan")), CheckError),
    "a nested input": (lambda: verify([torch.nested.nested_tensor([X])], Add(), Add()), CheckError),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_USES)
def test_wrong_use_is_refused(case: str) -> None:
    use, error = WRONG_USES[case]
    with pytest.raises(error):
        use()


# Gradients, state and mutation.


class Net(nn.Module):
    """Two outputs of which one is not differentiable, a buffer, an unused parameter."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 8)
        self.unused = nn.Parameter(torch.ones(2))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        self.seen += x.shape[0]
        y = self.linear(x)
        return y, y.argmax(-1), y.square().mean()


class Scaled(torch.autograd.Function):
    """The identity, with a gradient that is `factor` times too large."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad * ctx.factor, None


class WrongBackward(Net):
    def __init__(self, factor: float, which: int) -> None:
        super().__init__()
        self.factor, self.which = factor, which

    def forward(self, x: torch.Tensor) -> Any:
        outputs = list(super().forward(x))
        outputs[self.which] = Scaled.apply(outputs[self.which], self.factor)  # type: ignore[no-untyped-call]
        return tuple(outputs)


BACKWARD = VerifyConfig(backward=True, value_checker=RoundingChecker())


def test_every_kind_of_value_is_compared() -> None:
    net = Net()
    x = X.clone().requires_grad_()
    report = verify([x], net, torch.compile(net, backend="aot_eager"), BACKWARD)
    assert {row.key.slot for row in report.rows} == {
        "output.0", "output.1", "output.2", "buffer.seen",
        "grad_input.0", "grad.linear.weight", "grad.linear.bias",
    }  # fmt: skip


@pytest.mark.parametrize("which", [0, 2])
@pytest.mark.parametrize("factor", [7.0, -1.0, 1.01])
def test_a_wrong_backward_of_any_output_is_caught(which: int, factor: float) -> None:
    torch.manual_seed(0)
    net, wrong = Net(), WrongBackward(factor, which)
    wrong.load_state_dict(net.state_dict())
    verify([X], net, wrong)
    with pytest.raises(VerificationError, match=r"grad\.linear"):
        verify([X], net, wrong, BACKWARD)


def test_a_missing_gradient_is_a_difference_and_a_zero_one_is_not() -> None:
    class Detached(Net):
        def forward(self, x: torch.Tensor) -> Any:
            y, index, loss = super().forward(x)
            return y + 0 * self.unused.sum(), index, loss.detach()

    net, wrong = Net(), Detached()
    wrong.load_state_dict(net.state_dict())
    with pytest.raises(VerificationError, match=r"grad\.linear"):
        verify([X], net, wrong, BACKWARD)

    def first(module: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: module(x)[0]

    report = verify([X], first(net), first(wrong), BACKWARD)
    (unused,) = (row for row in report.rows if row.key.slot == "grad.unused")
    assert "zero in the target" in unused.judgement.reason


def test_forgotten_mutations_are_caught() -> None:
    def clamping(x: torch.Tensor) -> torch.Tensor:
        return x.clamp_(min=0) + 1

    def not_clamping(x: torch.Tensor) -> torch.Tensor:
        return x.clamp(min=0) + 1

    with pytest.raises(VerificationError, match=r"mutated\.0: FAIL"):
        verify([X], clamping, not_clamping)
    with pytest.raises(VerificationError, match=r"mutated\.0: FAIL"):
        verify([X], not_clamping, clamping)
    assert [row.key.slot for row in verify([X], clamping, clamping).rows] == [
        "output.0",
        "mutated.0",
    ]


def test_a_forgotten_buffer_update_is_caught() -> None:
    norm = nn.BatchNorm1d(64)
    frozen = nn.BatchNorm1d(64, momentum=0.0)
    with pytest.raises(VerificationError, match=r"buffer\.running_mean"):
        verify([X], norm, frozen)


def test_aliased_inputs_stay_aliased() -> None:
    def through_the_alias(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return b.clone()

    base = torch.arange(6.0)
    report = verify([base, base[2:]], through_the_alias, through_the_alias)
    assert [row.key.slot for row in report.rows] == ["output.0", "mutated.0", "mutated.1"]
    unaliased = lambda a, b: through_the_alias(a, b) - 1  # noqa: E731
    with pytest.raises(VerificationError, match=r"output\.0: FAIL"):
        exact = VerifyConfig(value_checker=ExactChecker())
        verify([base, base[2:]], through_the_alias, unaliased, exact)


def test_the_gradient_of_a_bias_before_a_norm_is_noise() -> None:
    """Its true value is zero; what either side computes is the rounding of what cancels."""
    golden = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))
    noise = 1e-7 * torch.randn(8, generator=torch.Generator().manual_seed(1))
    bias = golden.get_parameter("0.bias")  # a function runs the module itself, hooked
    bias.register_hook(lambda grad: noise)  # type: ignore[no-untyped-call]
    target = lambda x: golden(x)  # noqa: E731
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(2))
    report = verify([x], golden, target, VerifyConfig(backward=True))
    (row,) = (row for row in report.rows if row.key.slot == "grad.0.bias")
    assert "rounding noise" in row.judgement.reason
    with pytest.raises(VerificationError, match=r"grad\.0\.bias"):
        verify([x], golden, target, VerifyConfig(backward=True, noise=0.0))


# A reference in float64.


class Rounding(nn.Module):
    """A model whose float32 has an error of its own: a long sum."""

    def __init__(self, extra: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.1, 1.0, 4096).reshape(64, 64))
        self.extra = extra

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x.float() @ self.weight).cumsum(0)
        return y * (1 + self.extra)


def in_another_order(x: torch.Tensor) -> torch.Tensor:
    weight = torch.linspace(0.1, 1.0, 4096, dtype=x.dtype).reshape(64, 64)
    return (x[:, 32:] @ weight[32:] + x[:, :32] @ weight[:32]).cumsum(0)


REFERENCE = VerifyConfig(value_checker=FullValueChecker(rtol=1e-9), reference="float64")


def test_a_reference_forgives_rounding_and_nothing_else() -> None:
    report = verify([X], Rounding(), in_another_order, REFERENCE)
    (row,) = report.rows
    assert row.reference_errors is not None
    assert 0 < row.reference_errors[0] < 1e-3
    with pytest.raises(VerificationError, match="times golden's"):
        verify([X], Rounding(), Rounding(1e-3), REFERENCE)
    verify([X], Rounding(), Rounding(), VerifyConfig(value_checker=Fp64Checker(), backward=True))


@pytest.mark.parametrize("multiplier, said", [(1e-6, "FAIL"), (1e6, "PASS")])
def test_the_multipliers_are_fields(multiplier: float, said: str) -> None:
    checker = Fp64Checker(multiplier=multiplier, floor=0.0)
    config = VerifyConfig(value_checker=checker)
    try:
        verify([X], Rounding(), Rounding(1e-6), config)
        result = "PASS"
    except VerificationError:
        result = "FAIL"
    assert result == said


def test_a_reference_that_is_not_credible_is_inconclusive() -> None:
    """Golden draws other numbers in float64: its own error is so large that anything would pass."""

    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x * (torch.rand(x.shape, dtype=torch.float64 if x.dtype == torch.float64 else None))

    with pytest.raises(VerificationError, match="INCONCLUSIVE; golden itself"):
        verify([X], noisy, lambda x: noisy(x) + 0.1, REFERENCE)


def test_golden_without_a_float64_value_is_inconclusive() -> None:
    constant = X.clone()
    with pytest.raises(VerificationError, match="INCONCLUSIVE; golden gives no float64"):
        verify([X], giving(constant), giving(constant + 1e-3), REFERENCE)


def test_a_function_over_a_module_has_a_reference_and_leaves_the_module_as_it_was() -> None:
    model = nn.Linear(64, 2)
    model.weight.grad = torch.ones(2, 64)
    weight = model.weight.detach().clone()
    config = VerifyConfig(value_checker=Fp64Checker(), backward=True)
    report = verify([X], lambda x: model(x), model, config)
    assert all(row.reference_errors for row in report.rows)
    assert torch.equal(model.weight, weight)
    assert torch.equal(model.weight.grad, torch.ones(2, 64))


@pytest.mark.parametrize("fill", [-1e9, torch.finfo(torch.float32).min])
def test_the_fill_of_a_mask_hides_no_other_scale(fill: float) -> None:
    is_hidden = X > 1
    golden, same, scaled = (each.masked_fill(is_hidden, fill) for each in (X, X * 7 / 7, X * 1.2))
    assert report_on([X], giving(golden), giving(same)).passed
    assert not report_on([X], giving(golden), giving(scaled)).passed


def test_two_dumps_are_not_explained_but_compared() -> None:
    with pytest.raises(SelectionError, match="was given no target") as caught:
        dumpcmp.explain("mine", "golden")  # type: ignore[arg-type]
    assert "dumpcmp.compare(golden, mine)" in caught.value.hint
