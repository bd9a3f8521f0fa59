"""Inputs for an op: seeded, and valid for it."""

import torch

from dumpcmp.partitioning.call import leaves
from dumpcmp.partitioning.configuration import VALUE, TensorInfo
from dumpcmp.partitioning.rules.ruling import DimKind, Domain, parameter_of
from dumpcmp.partitioning.table import Entry

NORMAL = Domain(DimKind.NORMAL)
_PRIME = 7919  # keeps the seeds of neighbouring arguments apart


def domains_of(entry: Entry) -> tuple[Domain, ...]:
    """What numbers each leaf of the call may hold."""
    return tuple(
        entry.ruling.domains.get(parameter_of(leaf, entry.arguments), NORMAL)
        for leaf in leaves(entry.call)
    )


def wanted_grads(entry: Entry) -> tuple[int, ...]:
    """The leaves whose gradient is compared: floats that are neither state nor excluded."""
    return tuple(
        index
        for index, leaf in enumerate(leaves(entry.call))
        if isinstance(leaf.value, TensorInfo)
        and leaf.value.requires_grad
        and leaf.value.dtype.is_floating_point
        and parameter_of(leaf, entry.arguments) not in entry.ruling.buffers
        and domains_of(entry)[index].kind in (DimKind.NORMAL, DimKind.POSITIVE, DimKind.UNIT)
    )


def make_tensor(wanted: TensorInfo, domain: Domain, seed: int) -> torch.Tensor:
    """A tensor like `wanted` with numbers of `domain`, the same for the same `seed`."""
    if wanted.value_form == VALUE:
        return wanted.value.detach().clone()  # type: ignore[no-any-return]
    generator = torch.Generator().manual_seed(seed * _PRIME + 1)
    shape, dtype = wanted.shape, wanted.dtype
    match domain.kind:
        case DimKind.MASK:
            return _mask(shape, generator)
        case DimKind.COUNT:
            return torch.zeros(shape, dtype=torch.int64)
        case DimKind.PERMUTATION:
            return torch.rand(*shape[:-1], domain.limit, generator=generator).argsort(-1)[
                ..., : shape[-1]
            ]
        case DimKind.IDS:
            whole = torch.int64 if dtype.is_floating_point else dtype
            return torch.randint(0, domain.limit, shape, generator=generator, dtype=whole)
    if dtype is torch.bool:
        return _mask(shape, generator)
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.randint(
            int(domain.kind is DimKind.POSITIVE), 10, shape, generator=generator, dtype=dtype
        )
    return _floats(shape, domain.kind, generator, dtype)


def _mask(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    mask = torch.rand(shape, generator=generator) > 0.5
    if mask.dim():
        mask[..., 0] = True  # attention over a row without any True is undefined
    return mask


def _floats(
    shape: tuple[int, ...], kind: DimKind, generator: torch.Generator, dtype: torch.dtype
) -> torch.Tensor:
    if dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=dtype)
    if kind is DimKind.NORMAL:
        return torch.randn(shape, generator=generator).to(dtype)
    unit = torch.rand(shape, generator=generator)
    return (unit * 0.9 + 0.05 if kind is DimKind.POSITIVE else unit * 1.8 - 0.9).to(dtype)


def cotangent(shape: tuple[int, ...], dtype: torch.dtype, index: int, seed: int) -> torch.Tensor:
    """The random gradient that arrives at output `index`."""
    generator = torch.Generator().manual_seed(seed * _PRIME + 101 * (index + 1))
    wide = torch.complex64 if dtype.is_complex else torch.float32
    return torch.randn(shape, generator=generator, dtype=wide).to(dtype)
