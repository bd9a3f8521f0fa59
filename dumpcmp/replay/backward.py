"""Runs the backward pass of recorded calls again: vector-Jacobian products in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dumpcmp.nouns.op_names import OpSet
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.value import dtype_named
from dumpcmp.pytorch.trees import slots_of
from dumpcmp.replay.arguments import CallArguments, read_arguments
from dumpcmp.replay.chains import At, Chain
from dumpcmp.replay.drawing import NOT_DRAWING, draws
from dumpcmp.replay.kinds import FunctionKind
from dumpcmp.replay.limits import MOST_BYTES, check_size
from dumpcmp.replay.listed import ReplayFunction, function_named
from dumpcmp.replay.making import making_float64
from dumpcmp.replay.rating import error_of
from dumpcmp.replay.recorded import differentiable, told_by
from dumpcmp.replay.running import Rerun, fitted, lowered, ratio_of, widened
from dumpcmp.replay.unreplayable import Unreplayable

DRAWN = "drawn"  # the slot of what a dropout keeps of ones
GRADIENT = "gradient"  # the name of what a Rerun of a backward pass gives out
_OUTPUT = "output.0"

_SINGLE = 2.0**-24  # the rounding of one float32
_DOUBLE = 2.0**-50  # eps below it: float64, which no float32 tells of
_SHORT = 2.0**-20  # eps above it: a dtype that is computed with in a wider one
_LONGEST = 64.0  # times the spread of the terms: what a sum of thousands of them rounds
_MOVED = (0.0, 2.0**-6, 2.0**-5, 3 * 2.0**-6)  # shares by which inputs are made smaller in trials
_ROUNDED = 4.0  # of eps, times the spread: what a few roundings to a short dtype explain

# Each element of the gradient is one of what was given, as it is.
_LAYOUT = OpSet(
    """
    T _to_copy _unsafe_view alias bfloat16 cat chunk clone contiguous double flatten float half
    mT movedim narrow permute reshape reshape_as select slice split split_with_sizes squeeze stack
    swapaxes swapdims t to transpose unbind unflatten unsqueeze view view_as
    """
)
_CASTS = OpSet("bfloat16 half float double type_as")
_LINEAR = (FunctionKind.ADDS, FunctionKind.CONTRACTS, FunctionKind.SUMS)  # in each input
# A derivative such as 1 - y*y, or that of a softmax, is made of the output as it was rounded.
_FROM_OUTPUT = OpSet(
    """
    _log_softmax _safe_softmax _softmax log_softmax sigmoid softmax softmin softplus tanh
    """
)


@dataclass(frozen=True, slots=True)
class Slope:
    """A region of calls to differentiate: with respect to what, and what it was given backward.

    `given` are the forward values by call and slot: inputs, and outputs of what draws numbers, or
    what a dropout keeps of ones (`DRAWN`).
    """

    region: Chain
    given: Mapping[At, Tensor]
    leaves: Sequence[At]  # the inputs that are the tensor whose gradient is wanted
    grads: Mapping[At, Tensor]  # what was given for outputs in the backward pass
    recorded: Mapping[At, Tensor] = field(default_factory=dict)  # outputs to differentiate by


class BackwardRerun:
    """The backward pass of a region, in float64: the sum over takers of the leaf of their products.

    What it gives is known at once. How well that is determined takes several passes more.
    """

    def __init__(self, slope: Slope, *, device: str = "cpu", limit: int = MOST_BYTES) -> None:
        self._slope, self._how = slope, (device, limit)
        self._functions = [function_named(call.target, device) for call in slope.region.calls]
        self._wide = _Pass(slope, self._functions, *self._how, torch.float64)
        parts = self._wide.products(slope.grads)
        self.parts = dict(zip(slope.leaves, parts, strict=True))  # what each taker gave
        self.gradient = _sum(parts)

    def plain(self, *, is_summed: bool = False) -> Rerun:
        """What it gives, as if nothing cancelled; it may be a sum of what only moves it."""
        is_exact = _only_lays_out(self._slope, self._functions) and not is_summed
        number = len(self._functions)
        return Rerun({GRADIENT: self.gradient}, is_exact=is_exact, num_ops=number)

    def condition(self) -> float:
        """How much larger the terms are than what is left of them."""
        return max(self._spread()[0], self._linear()[0])

    def rated(self, *, is_moved: bool = False) -> Rerun:
        """The same with its condition, and its noise where the run computed in short dtypes.

        The noise is the error of the same calls in the dtypes of the run, as far as rounding can
        explain it. A derivative that is taken from a rounded output is off by that rounding, which
        may be small by chance: so that is the largest of a few where inputs `is_moved` a little.
        """
        eps = _coarsest(self._slope)
        spread, terms = self._spread()
        condition, noise, moves = spread, 0.0, _MOVED if is_moved else (0.0,)
        if _is_linear(self._functions):
            condition, terms = self._linear()
            condition = max(spread, condition)
        elif eps > _DOUBLE:
            error = max(self._error(torch.float32, share) for share in moves)
            condition = max(condition, min(error / _SINGLE, _LONGEST * spread))
        if eps > _SHORT:
            error = max(self._error(None, share) for share in moves)
            noise = min(error, _ROUNDED * eps * spread)
        return replace(
            self.plain(),
            condition={GRADIENT: condition},
            noise={GRADIENT: max(noise, self._sum_noise(eps))},
            terms={GRADIENT: terms},
        )

    def _sum_noise(self, eps: float) -> float:
        """What a sum rounds that is made term by term, as that of a bias over all its rows."""
        taken = (*self._slope.given.values(), *self._slope.grads.values())
        largest = max((tensor.numel() for tensor in taken), default=1)
        terms = max(1.0, largest / max(1, self.gradient.numel()))
        return min(eps, 2 * _SINGLE) / 8 * math.sqrt(terms)

    def _linear(self) -> tuple[float, Tensor]:
        """The condition of calls that are linear in each input, and the terms of their sums."""
        if not _is_linear(self._functions):
            return 1.0, self.gradient
        run = _Pass(_absolute(self._slope), self._functions, *self._how, torch.float64)
        terms = _sum([part.abs() for part in run.products(run.slope.grads)])
        return ratio_of(terms, self.gradient), terms

    def _spread(self) -> tuple[float, Tensor]:
        """How much larger the terms are than what is left of them; and what they may come to."""
        terms = _sum(self._wide.products_at_random()).abs()
        outputs = _from_outputs(self._functions, self._slope.grads, self.gradient)
        return max(ratio_of(terms, self.gradient), outputs), terms

    def _error(self, dtype: torch.dtype | None, share: float) -> float:
        """The error of the same calls in another dtype; 0 where they cannot be run in it.

        None stands for the dtypes of the run.
        """
        try:
            slope, exact = self._moved(share)
            run = _Pass(slope, self._functions, *self._how, dtype)
            found = _sum(run.products(slope.grads))
        except Unreplayable:
            return 0.0
        return error_of(found, exact)

    def _moved(self, share: float) -> tuple[Slope, Tensor]:
        """The same with what is differentiated by made smaller by `share`, and what it gives."""
        if not share:
            return self._slope, self.gradient
        leaves = {at: (1 - share) * self._slope.given[at] for at in self._slope.leaves}
        slope = replace(self._slope, given={**self._slope.given, **leaves})
        run = _Pass(slope, self._functions, *self._how, torch.float64)
        return slope, _sum(run.products(slope.grads))


class _Pass:
    """One forward pass of a region, kept for products with its Jacobian.

    `dtype` is what all is computed in; None: in the dtypes of the run.
    """

    def __init__(
        self,
        slope: Slope,
        functions: Sequence[ReplayFunction],
        device: str,
        limit: int,
        dtype: torch.dtype | None,
    ) -> None:
        self.slope = slope
        self._device, self._limit, self._dtype = device, limit, dtype
        self._given = dict(slope.given)
        self._leaves = [self._leaf(self._given[at]) for at in slope.leaves]
        self._made: dict[At, Tensor] = {}
        for number, (call, function) in enumerate(zip(slope.region.calls, functions, strict=True)):
            for slot, tensor in self._run(number, call, function).items():
                self._made[number, slot] = tensor

    def products(self, grads: Mapping[At, Tensor]) -> list[Tensor]:
        """The product of `grads` with the Jacobian, for each leaf."""
        ends = [(self._made.get(at), grad) for at, grad in grads.items()]
        used = [(end, grad) for end, grad in ends if end is not None and end.requires_grad]
        if not used:  # others, such as a `view_as` that takes the shape alone, add nothing
            raise Unreplayable("its output does not depend on what it was given")
        if any(end.shape != grad.shape for end, grad in used):
            raise Unreplayable("its replay gives another shape than it had")
        found = _guarded(
            lambda: torch.autograd.grad(
                [end for end, _ in used],
                self._leaves,
                [grad.to(end.dtype) for end, grad in used],
                retain_graph=True,
                allow_unused=True,
            )
        )
        pairs = zip(found, self._leaves, strict=True)
        return [torch.zeros_like(leaf) if grad is None else grad for grad, leaf in pairs]

    def products_at_random(self) -> list[Tensor]:
        """The products with signs at random, here and on the way, so that nothing cancels."""
        generator = torch.Generator().manual_seed(0)
        between = sorted(set(self.slope.region.wires.values()) & set(self._made))
        handles = [
            self._made[at].register_hook(
                lambda grad: _signed(grad, generator) if grad is not None else None
            )  # type: ignore[no-untyped-call]
            for at in between
            if self._made[at].requires_grad
        ]
        wide = {at: _widest(grad) for at, grad in self.slope.grads.items()}
        try:
            return self.products({at: _signed(grad, generator) for at, grad in wide.items()})
        finally:
            for handle in handles:
                handle.remove()

    def _leaf(self, value: Tensor) -> Tensor:
        return self._cast(value.detach()).clone().requires_grad_(True)

    def _cast(self, value: Tensor) -> Tensor:
        if self._dtype is None or not (value.is_floating_point() or value.is_complex()):
            return value
        return value.to(self._dtype.to_complex() if value.is_complex() else self._dtype)

    def _run(self, number: int, call: Call, function: ReplayFunction) -> dict[str, Tensor]:
        region, leaves = self.slope.region, list(self.slope.leaves)
        inputs = {slot: value for (n, slot), value in self._given.items() if n == number}
        inputs |= {
            slot: self._made[source]
            for (n, slot), source in region.wires.items()
            if n == number and source in self._made
        }
        inputs |= {slot: self._leaves[leaves.index((n, slot))] for n, slot in leaves if n == number}
        arguments = fitted(read_arguments(call.arguments, inputs), inputs)
        arguments = self._in_dtype(function, arguments)
        check_size(function, arguments.mapped(_detached), self._limit)
        if function.kind is FunctionKind.DRAWS:
            with torch.enable_grad():
                return {_OUTPUT: _dropped(function, arguments, inputs)}
        if draws(function, arguments):
            raise Unreplayable("it draws random numbers", hint=NOT_DRAWING)
        outputs = _differentiable(function, arguments)
        known = self.slope.recorded.get((number, told_by(function.name)))
        if known is not None:
            known = known.to(outputs[_OUTPUT].device)
            outputs = differentiable(function.name, arguments, outputs, known)
        return {slot: self._between((number, slot), value) for slot, value in outputs.items()}

    def _in_dtype(self, function: ReplayFunction, arguments: CallArguments) -> CallArguments:
        if self._dtype is None:
            return lowered(function, arguments, self._device)
        if self._dtype is torch.float64:
            return widened(function, arguments, self._device)

        def change(leaf: Any) -> Any:
            if isinstance(leaf, torch.dtype) and leaf.is_floating_point:
                return self._dtype
            return self._cast(leaf) if isinstance(leaf, Tensor) else leaf

        return lowered(function, arguments, self._device).mapped(change)

    def _between(self, at: At, value: Tensor) -> Tensor:
        """An output as the next call takes it: as golden rounded it, or wide."""
        if not value.is_floating_point():
            return value
        rounded = self.slope.region.dtypes.get(at, value.dtype)
        return value.to(self._dtype or rounded)


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def _detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def _differentiable(function: ReplayFunction, arguments: CallArguments) -> dict[str, Tensor]:
    """Call the function so that it can be differentiated; its tensors by slot."""
    arguments = making_float64(function, arguments)
    args, kwargs = list(arguments.args), arguments.kwargs
    if function.kind is FunctionKind.NOTHING:
        raise Unreplayable("it gives out memory as it was found")
    if function.name in _CASTS and args[0].dtype is torch.float64:
        return {_OUTPUT: args[0]}  # wide is wide
    with torch.enable_grad():
        if function.kind is FunctionKind.NORMALISES:  # which may keep running statistics
            arguments = arguments.mapped(_copied)
            args, kwargs = list(arguments.args), arguments.kwargs
        if function.changes_first and args and isinstance(args[0], Tensor):
            args[0] = args[0].clone()
        result = _guarded(lambda: function.run(*args, **kwargs))
    return dict(slots_of("output", args[0] if function.returns_nothing else result))


def _guarded(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Exception as error:
        said = str(error).partition("\n")[0][:160]
        raise Unreplayable(f"its backward pass cannot be run again: {said}") from None


def _dropped(
    function: ReplayFunction, arguments: CallArguments, inputs: Mapping[str, Tensor]
) -> Tensor:
    """What a dropout gives, with what it dropped read off the output that was recorded."""
    told = dict(zip(("input", "p", "training"), arguments.args, strict=False)) | arguments.kwargs
    taken, share = told.get("input"), told.get("p", 0.5)
    if "dropout" not in function.name or "alpha" in function.name or taken is None:
        raise Unreplayable("it draws random numbers")
    if not told.get("training", told.get("train", True)) or share == 0:
        return torch.as_tensor(taken * 1.0)
    given, drawn = inputs.get(_OUTPUT), inputs.get(DRAWN)
    if drawn is None and given is not None and not bool((taken == 0).any()):
        drawn = given
    if drawn is None or share >= 1:
        raise Unreplayable("it draws random numbers, and what it drew cannot be told")
    return torch.as_tensor(taken * ((drawn != 0).to(taken.dtype) / (1 - share)))


def _sum(parts: Sequence[Tensor]) -> Tensor:
    if len({part.shape for part in parts}) > 1:
        raise Unreplayable("those that took it took it in different shapes")
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total.detach()


def _signed(grad: Tensor, generator: torch.Generator) -> Tensor:
    """`grad` with signs at random."""
    bits = torch.randint(0, 2, grad.shape, generator=generator, dtype=torch.int8)
    return grad * (bits * 2 - 1).to(grad.device)


def _widest(grad: Tensor) -> Tensor:
    return grad if grad.is_complex() else grad.double()


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor))


def _from_outputs(
    functions: Sequence[ReplayFunction], grads: Mapping[At, Tensor], exact: Tensor
) -> float:
    """How much larger the terms are where a derivative such as 1 - y*y is taken from the output."""
    if not any(function.name in _FROM_OUTPUT for function in functions):
        return 1.0
    norms = [_norm(grad.double()) for grad in grads.values() if grad.is_floating_point()]
    left = _norm(exact[torch.isfinite(exact)])
    return max(1.0, math.hypot(*norms) / left) if left else 1.0


def _only_lays_out(slope: Slope, functions: Sequence[ReplayFunction]) -> bool:
    """Whether every bit of the gradient is known: one call, which only lays elements out anew."""
    if len(functions) != 1 or len(slope.leaves) != 1 or functions[0].changes_first:
        return False
    indexed = any(slot.startswith("input.1") for _, slot in slope.given)
    plain = functions[0].name in _LAYOUT
    return plain or (functions[0].name == "getitem" and not indexed)


def _is_linear(functions: Sequence[ReplayFunction]) -> bool:
    """Whether every call is linear in each input, so that absolute values tell of its sums."""
    return all(
        function.kind in _LINEAR or function.name in _LAYOUT or function.name == "mul"
        for function in functions
    )


def _absolute(slope: Slope) -> Slope:
    given = {at: _magnitude(value) for at, value in slope.given.items()}
    grads = {at: _magnitude(value) for at, value in slope.grads.items()}
    return replace(slope, given=given, grads=grads)


def _magnitude(tensor: Tensor) -> Tensor:
    return tensor.abs() if tensor.is_floating_point() or tensor.is_complex() else tensor


def _coarsest(slope: Slope) -> float:
    """The largest rounding among the dtypes that the run computed in."""
    dtypes = {*(value.dtype for value in (*slope.given.values(), *slope.grads.values()))}
    return max(dtype_named(str(dtype)).eps for dtype in dtypes)
