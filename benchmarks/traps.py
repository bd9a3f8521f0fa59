"""Table "traps": what tt-forge's rule, dynamo's same() and dumpcmp say of pairs that fool one."""

import copy
import logging
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._dynamo.debug_utils import same_two_models
from torch._dynamo.utils import same
from torch._logging._internal import set_logs

import dumpcmp
from benchmarks.tables import Table
from dumpcmp import (
    AutomaticValueChecker,
    Checker,
    Fp64Checker,
    RoundingChecker,
    VerificationError,
    VerifyConfig,
    verify,
)
from dumpcmp.nouns.errors import VerificationWarning

X = torch.linspace(-3, 3, 4096).reshape(64, 64)
ONES = torch.ones(9)
NAN = X.clone()
NAN[3, 4] = torch.nan
NAN_ELSEWHERE = X.clone()
NAN_ELSEWHERE[3, 5] = torch.nan
CONSTANT_AND_NAN = torch.tensor([1.0, 1.0, torch.nan])
OUTLIER = X.clone()
OUTLIER[5, 5] += 9
FORGE = AutomaticValueChecker()


@dataclass(frozen=True)
class Pair:
    """Two values that differ, and how one is to see it."""

    name: str
    golden: torch.Tensor
    target: torch.Tensor


PAIRS = [
    Pair("2x + 5 for x", X, 2 * X + 5),
    Pair("7x for x", X, 7 * X),
    Pair("one element of 4096 off by 9", X, OUTLIER),
    Pair("two other, increasing elements", torch.tensor([1.0, 2.0]), torch.tensor([3.0, 9.0])),
    Pair("constants 1 and 3", ONES, 3 * ONES),
    Pair("uint8 constants 1 and 7", ONES.to(torch.uint8), 7 * ONES.to(torch.uint8)),
    Pair("constants 1 and 7, and a NaN", CONSTANT_AND_NAN, CONSTANT_AND_NAN * 7),
    Pair("NaN at another place", NAN, NAN_ELSEWHERE),
    Pair("integers 5 9 1000 and 5 9 1001", torch.tensor([5, 9, 1000]), torch.tensor([5, 9, 1001])),
    Pair("integers 100000 and 100001", torch.tensor([100000]), torch.tensor([100001])),
    Pair("shapes that broadcast", torch.ones(4, 4), torch.ones(1, 4)),
    Pair("float32 and float64", X, X.double()),
    Pair("zeros for gradients of 1e-5", 1e-5 * X, torch.zeros(64, 64)),
    Pair("nothing at all: empty tensors", torch.empty(0), torch.empty(0)),
]


def table() -> Table:
    set_logs(dynamo=logging.CRITICAL)  # it logs each failure that we provoke
    rows = [(pair.name, *map(str, (forge(pair), dynamo(pair), ours(pair)))) for pair in PAIRS]
    rows += [(name, *says()) for name, says in SITUATIONS.items()]
    headings = ("trap", "tt-forge's rule", "same() or verify_correctness", "dumpcmp")
    return Table("traps", headings, rows, HOW)


HOW = (
    "Every pair differs, except where the name says otherwise. tt-forge's rule is its default "
    "checker, written again from its description; same() is torch's own. dumpcmp is `verify` with "
    "`AutomaticValueChecker`, which has tt-forge's meaning; after the dash, with its own default."
)


# tt-forge's default: attributes, then one rule by kind and size.


def forge(pair: Pair) -> str:
    golden, target = pair.golden, pair.target
    if golden.dtype != target.dtype or golden.shape != target.shape:
        return "fails"
    if golden.numel() == 1:
        exact = not golden.is_floating_point()
        return _passes(torch.equal(golden, target) if exact else torch.allclose(target, golden))
    pcc = _correlation(golden, target)
    return "raises" if math.isnan(pcc) else f"{_passes(pcc >= 0.99)}, PCC {pcc:.6f}"


def _correlation(golden: torch.Tensor, target: torch.Tensor) -> float:
    """NaN where their rule raises: a constant in numbers that its kernel takes, or no elements."""
    a, b = (np.ma.masked_invalid(side.double().numpy().reshape(-1)) for side in (golden, target))
    if not a.size:
        return math.nan
    plain = golden.dtype not in (torch.uint8, torch.int8) and not (a.mask.any() or b.mask.any())
    if plain and (a.std() == 0 or b.std() == 0):
        return 1.0 if torch.allclose(golden, target) else math.nan
    if not np.array_equal(np.ma.getmaskarray(a), np.ma.getmaskarray(b)):
        return 0.0
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        least = np.ma.min(np.ma.corrcoef(a, b))  # type: ignore[no-untyped-call]
    return 1.0 if least is np.ma.masked else float(least)


def _passes(passes: bool) -> str:
    return "passes" if passes else "fails"


def dynamo(pair: Pair) -> str:
    try:
        return _passes(same(pair.golden, pair.target, log_error=lambda *_: None))
    except RuntimeError as error:
        return f"raises {type(error).__name__}"


def ours(pair: Pair) -> str:
    golden, target = (lambda _: pair.golden), (lambda _: pair.target)
    return f"{_said(golden, target)} – {_said(golden, target, RoundingChecker())}"


def _said(golden: Any, target: Any, checker: Checker = FORGE, **options: Any) -> str:
    """The verdict, and whether verify raises or warns."""
    config = VerifyConfig(**options, value_checker=checker)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            report = verify([X], golden, target, config)
        except VerificationError as error:
            words = error.message.splitlines()
            return words[1].split(": ")[1].split(";")[0] if words[1:] else "nothing compared"
    doubts = any(issubclass(warning.category, VerificationWarning) for warning in caught)
    return f"{report.rows[0].verdict}{', warns' if doubts else ''}"


# Situations rather than pairs.


def noisy(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout(x, 0.5, training=True)


def stochastic_reference() -> tuple[str, str, str]:
    torch.manual_seed(0)
    reference, golden = noisy(X.double()), noisy(X)
    wrong = golden + 0.5
    theirs = _passes(same(golden, wrong, fp64_ref=reference, log_error=lambda *_: None))
    unlike = lambda x: noisy(x) * (1 + (x.dtype == torch.float64))  # noqa: E731
    return "–", theirs, _said(unlike, lambda x: noisy(x) + 0.5, Fp64Checker())


def short_reference() -> tuple[str, str, str]:
    theirs = same([X, X], [X, X + 1], fp64_ref=[X.double()], log_error=lambda *_: None)
    pair = lambda x: (x, X)  # noqa: E731
    target = lambda x: (x, X + 1)  # noqa: E731
    return "–", _passes(theirs), _said(pair, target, Fp64Checker(), reference="float64")


class SevenTimes(torch.autograd.Function):
    """The identity, with a gradient seven times too large."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 7


def seven_times(graph: Any, _: Any) -> Callable[..., Any]:
    return lambda *args: tuple(SevenTimes.apply(value) for value in graph(*args))  # type: ignore[no-untyped-call]


def wrong_backward() -> tuple[str, str, str]:
    return "–", _compiling(seven_times, ours=False), _compiling(seven_times, ours=True)


def shared_grads() -> tuple[str, str, str]:
    """Golden's and the target's gradients taken from one module: the same objects."""
    model = nn.Linear(64, 2)
    model(X).sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    SevenTimes.apply(model(X)).sum().backward()  # type: ignore[no-untyped-call]
    actual = [parameter.grad for parameter in model.parameters()]
    wrong = copy.deepcopy(model)
    wrong.register_forward_hook(lambda *called: SevenTimes.apply(called[-1]))  # type: ignore[no-untyped-call]
    said = _said(model, wrong, RoundingChecker(), backward=True)
    return "–", _passes(same(expected, actual)), said


def random_model() -> tuple[str, str, str]:
    """Nothing differs: a faithful backend, and a model that draws random numbers."""
    return "–", _compiling("eager", ours=False, model=noisy), _compiling("eager", True, noisy)


Model = Callable[[torch.Tensor], torch.Tensor]


def _compiling(backend: Any, ours: bool, model: Model | None = None) -> str:
    torch._dynamo.reset()
    model = model or nn.Linear(64, 2)
    plain = torch._dynamo.config.patch(verify_correctness=True)
    with dumpcmp.verify_correctness() if ours else plain:
        try:
            torch.compile(model, backend=backend)(X)
            return "passes"
        except RuntimeError:
            return "fails"


def raising_target() -> tuple[str, str, str]:
    class Broken(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError(f"no kernel for {x.dtype}")

    model, broken = nn.Linear(64, 2), Broken(64, 2)
    theirs = same_two_models(model, broken, [X])
    return "–", f"{_passes(theirs)} (same_two_models)", _said(model, broken)


SITUATIONS: dict[str, Callable[[], tuple[str, str, str]]] = {
    "a float64 reference that drew other random numbers": stochastic_reference,
    "a float64 reference that is too short": short_reference,
    "a 7 times too large backward, right forward": wrong_backward,
    "the same, grads read from one shared module": shared_grads,
    "dropout on a faithful backend: nothing differs": random_model,
    "the target raises": raising_target,
}
