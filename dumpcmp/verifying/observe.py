"""One run of a callable, and everything it gave or changed, by path."""

import zlib
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from dumpcmp.nouns.errors import CheckError
from dumpcmp.pytorch.trees import leaves
from dumpcmp.verifying.isolate import Inputs, Subject, put_back, widened

Cotangents = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Observation:
    """What a run gave (`outputs`) and left behind (the rest), each value by its path."""

    outputs: dict[str, Any]  # "output.0", "output.logits"; tensors and plain values
    left: dict[str, torch.Tensor]  # after the run: "mutated.0", "buffer.mean", "param.weight"
    grads: dict[str, torch.Tensor]  # "grad_input.0", "grad.weight"
    cotangents: Cotangents  # what was sent back into each differentiable output


def observe(
    subject: Subject,
    *,
    backward: bool = False,
    cotangents: Cotangents | None = None,
    wide: bool = False,
) -> Observation:
    """Run `subject` once and see what it gave; with `backward`, its gradients too.

    Every differentiable output gets a cotangent: golden's, from `cotangents`, or a random one that
    depends on its path alone. With `wide`, casts inside the run go to float64.
    """
    with put_back(subject), widened(subject) if wide else nullcontext():
        with torch.enable_grad() if backward else nullcontext():
            result = subject.call(*subject.inputs.args, **subject.inputs.kwargs)
        outputs = named_outputs(result)
        state = subject.state()
        if not subject.copied:  # what is there now will be put back
            state = {name: value.detach().clone() for name, value in state.items()}
        left = subject.inputs.mutable() | state
        sent = send_back(outputs, cotangents) if backward else {}
        grads = _grads(subject) if backward else {}
        return Observation(outputs, left, grads, sent)


def named_outputs(result: Any) -> dict[str, Any]:
    """The leaves of a result: ``output.0`` for a lone value, ``output.logits`` in a mapping.

    A nested tensor has no one shape: its components are leaves, ``output.0.0`` is the first.
    """
    return {
        name: part
        for path, leaf in leaves(result, "output")
        for name, part in _components("output.0" if path == "output" else path, leaf)
    }


def _components(path: str, leaf: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(leaf, torch.Tensor) or not leaf.is_nested:
        yield path, leaf
        return
    for number, component in enumerate(leaf.unbind()):
        yield f"{path}.{number}", component


def send_back(outputs: Mapping[str, Any], cotangents: Cotangents | None) -> Cotangents:
    """Backpropagate from every differentiable output at once; return what was sent into each."""
    differentiable = {
        path: leaf
        for path, leaf in outputs.items()
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    }
    sent = {
        path: _cotangent(path, leaf, (cotangents or {}).get(path))
        for path, leaf in differentiable.items()
    }
    if sent:
        torch.autograd.backward(list(differentiable.values()), list(sent.values()))
    return sent


def _cotangent(path: str, output: torch.Tensor, given: torch.Tensor | None) -> torch.Tensor:
    """What goes back into `output`: as `given`, or random and about as long as a unit vector.

    So the gradient of a loss is not lost beside those of many logits. No element is near zero.
    """
    if given is not None and given.shape == output.shape:
        return given.to(output.dtype)
    generator = torch.Generator().manual_seed(zlib.crc32(path.encode()))
    drawn = torch.rand(output.shape, generator=generator, dtype=torch.float32).mul_(2).sub_(1)
    away_from_zero = drawn.add_(drawn.sign().mul_(0.5))
    return away_from_zero.div_(max(1, output.numel()) ** 0.5).to(output.device, output.dtype)


def _grads(subject: Subject) -> dict[str, torch.Tensor]:
    """The gradients that arrived in the inputs and in the parameters."""
    arrived = {
        **{f"grad_input.{path}": tensor for path, tensor in subject.inputs.tensors().items()},
        **{f"grad.{name}": tensor for name, tensor in subject.parameters().items()},
    }
    return {
        path: tensor.grad
        for path, tensor in arrived.items()
        if tensor.is_leaf and tensor.grad is not None
    }


def as_inputs(inputs: Any) -> Inputs:
    """The user's `inputs` as arguments: a tensor, a sequence of arguments, or keywords."""
    if isinstance(inputs, Inputs):
        return inputs
    if isinstance(inputs, torch.Tensor):
        return Inputs((inputs,))
    if isinstance(inputs, Mapping):
        return Inputs((), dict(inputs))
    if isinstance(inputs, list | tuple):
        return Inputs(tuple(inputs))
    raise CheckError(
        f"inputs are a {type(inputs).__name__}, which cannot be passed to a model",
        hint="give a tensor, a list of positional arguments, or a dict of keyword arguments",
    )
