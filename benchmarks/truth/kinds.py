"""The kinds of faults: which calls each can strike, and what it makes of a result."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.truth.bound import NORMS, wide_result
from benchmarks.truth.noise import is_float
from benchmarks.truth.watching import CASTS, Args, Kwargs, Run, Seen, flat, one_of, rebuilt


@dataclass(slots=True)
class Struck:
    """A call that is to go wrong: what it was given, what it gives, and what came before."""

    func: Run
    args: Args
    kwargs: Kwargs
    name: str
    right: Any
    before: Tensor | None = None  # an earlier result of the same shape

    @property
    def output(self) -> Tensor:
        """The first floating tensor that it gives."""
        found = next(x for x in flat(self.right) if isinstance(x, Tensor))
        return next((x for x in flat(self.right) if is_float(x)), found)

    @property
    def wide(self) -> Tensor:
        """Its output in float64, before the rounding."""
        exact = wide_result(self.func, self.args, self.kwargs, self.name)
        if exact is None:
            return self.output.double()
        found: Tensor = next(x for x in flat(exact) if is_float(x))
        return found


SHOWN = one_of("cat stack getitem embedding transpose permute reshape contiguous repeat flatten")
Strike = Callable[[Struck], Any]
Fits = Callable[[Seen], bool]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault: what it makes of a call's output, and at which calls it is possible."""

    name: str
    strike: Strike
    fits: Fits
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")


def wrong(struck: Struck, kind: Kind) -> Any:
    """What a call gives that `kind` struck: the output replaced in whatever holds it."""
    output, made = struck.output, kind.strike(struck)
    if not isinstance(made, Tensor):
        return made
    changed = torch.empty_like(output).copy_(made)
    if struck.right is output:
        return changed
    leaves = [changed if x is output else x for x in struck.right]
    return leaves if isinstance(struck.right, list) else rebuilt(struck.right, leaves)


# Where a fault can strike


def computes(seen: Seen) -> bool:
    """Whether a call computes floating numbers, and enough of them."""
    usable = seen.dtype and not seen.in_place and not seen.is_move
    return bool(usable) and seen.site.function not in CASTS and _numel(seen) >= 16


def _numel(seen: Seen) -> int:
    return int(torch.Size(seen.shape).numel())


def in_own_dtype(seen: Seen) -> bool:
    return computes(seen) and len(seen.shape) >= 2 and min(seen.shape[-2:]) >= 4


def moves(seen: Seen) -> bool:
    shown = seen.is_move and seen.dtype and not seen.in_place and _numel(seen) >= 16
    return bool(shown) and seen.site.function in SHOWN


def called(*names: str) -> Fits:
    return lambda seen: seen.site.function in names and bool(seen.dtype) and not seen.in_place


def has_bias(seen: Seen) -> bool:
    return seen.has_bias


def adds(seen: Seen) -> bool:
    return seen.site.function == "add" and seen.plain == "(('T', 'T'), {})" and in_own_dtype(seen)


def has_heads(seen: Seen) -> bool:
    return in_own_dtype(seen) and seen.shape[-1] % 4 == 0


# What goes wrong


def scaled(factor: float) -> Strike:
    return lambda struck: struck.wide * (1 + factor)


def shifted_up(struck: Struck) -> Tensor:
    wide = struck.wide
    return wide + 1e-3 * wide[wide.isfinite()].square().mean().sqrt()


def one_row(struck: Struck) -> Tensor:
    out = struck.output.contiguous().clone()
    rows = out.view(-1, out.shape[-1])
    rows[len(rows) // 2] = rows[(len(rows) // 2 + 3) % len(rows)]
    return rows.view(out.shape)


def one_element(struck: Struck) -> Tensor:
    out = struck.output.contiguous().clone()
    size = out[out.isfinite()].float().square().mean().sqrt()
    flat_out = out.view(-1)
    place = int(flat_out.float().where(flat_out.isfinite(), 0).abs().argmax())
    flat_out[place] += size.to(out.dtype)
    return out


def swapped_channels(struck: Struck) -> Tensor:
    out = struck.output
    order = torch.arange(out.shape[-1])
    order[[1, 3]] = order[[3, 1]]
    return out[..., order.to(out.device)]


def stale(struck: Struck) -> Tensor:
    """The last quarter of the buffer still holds an earlier result, or nothing."""
    out = struck.output.contiguous().clone()
    start = out.numel() * 3 // 4
    before = torch.zeros_like(out) if struck.before is None else struck.before
    out.view(-1)[start:] = before.reshape(-1)[start:]
    return out


def shifted(struck: Struck) -> Tensor:
    out = struck.output
    return out.roll(1, -2)


def narrowed(struck: Struck) -> Tensor:
    """Rounded to a narrower type on the way."""
    out = struck.output
    narrow = torch.bfloat16 if out.dtype == torch.float32 else torch.float8_e4m3fn
    return out.float().to(narrow).float()


def truncated(struck: Struck) -> Tensor:
    """Cut off instead of rounded."""
    wide, dtype = struck.wide, struck.output.dtype
    near = wide.to(dtype)
    above = near.double().abs() > wide.abs()
    down = torch.nextafter(near.float(), torch.zeros(()))  # of float32; halved below
    bits = 16 if dtype == torch.bfloat16 else 13
    cut = (down.view(torch.int32) >> bits << bits).view(torch.float32)
    return torch.where(above & near.isfinite(), cut, near.float())


def sign_of_a_head(struck: Struck) -> Tensor:
    out = struck.output.clone()
    if out.ndim == 4:
        out[:, 1 % out.shape[1]] *= -1
    else:
        out[..., : out.shape[-1] // 4] *= -1
    return out


def without_bias(struck: Struck) -> Tensor:
    args, kwargs = struck.args, dict(struck.kwargs)
    if "bias" in kwargs:
        kwargs["bias"] = None
    else:
        args = (*args[:2], None, *args[3:])
    out: Tensor = struck.func(*args, **kwargs)
    return out


def with_large_eps(struck: Struck) -> Tensor:
    """Normalised with an eps of one thousandth of the mean square and more."""
    kwargs, args = dict(struck.kwargs), list(struck.args)
    scale = float(args[0].float().square().mean()) * 0.05
    places = {"layer_norm": 4, "group_norm": 4, "rms_norm": 3, "batch_norm": 7}
    place = places[struck.name]
    if "eps" in kwargs or len(args) <= place:
        kwargs["eps"] = scale
    else:
        args[place] = scale
    out: Tensor = struck.func(*args, **kwargs)
    return out


def leaking(struck: Struck) -> Tensor:
    """A mask that lets every query see one key more."""
    args, kwargs = list(struck.args), dict(struck.kwargs)
    if struck.name == "masked_fill":
        mask = args[1]
        out: Tensor = struck.func(args[0], mask & mask.roll(1, -1), *args[2:], **kwargs)
        return out
    q, k = args[:2]
    mask = kwargs.pop("attn_mask", None)
    if kwargs.pop("is_causal", False) or mask is None:
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril(1)
    else:
        mask = mask.roll(1, -1)
    return struck.func(*args[:3], attn_mask=mask, **kwargs)  # type: ignore[no-any-return]


def without_first(struck: Struck) -> Tensor:
    """A sum that lost its first term."""
    other: Tensor = struck.args[1]
    return other.expand(struck.output.shape)


def wrong_choice(struck: Struck) -> Any:
    """The last of what was chosen is the worst that there was."""
    values, indices = struck.right[0].clone(), struck.right[1].clone()
    values[..., -1], indices[..., -1] = struck.args[0].min(-1)
    return rebuilt(struck.right, [values, indices])


KINDS = (
    Kind("scale 1 + 2^-6", scaled(2**-6), computes),
    Kind("scale 1 + 2^-9", scaled(2**-9), computes),
    Kind("additive 1e-3 rms", shifted_up, computes),
    Kind("wrong eps", with_large_eps, called(*NORMS)),
    Kind("dropped bias", without_bias, has_bias),
    Kind("one row", one_row, in_own_dtype),
    Kind("one element", one_element, computes),
    Kind("swapped channels", swapped_channels, in_own_dtype),
    Kind("stale value", stale, in_own_dtype),
    Kind("shifted sequence", shifted, in_own_dtype),
    Kind("wrong mask", leaking, called("masked_fill", "scaled_dot_product_attention")),
    Kind("wrong cast", narrowed, computes),
    Kind("truncated rounding", truncated, computes, ("bfloat16", "float16")),
    Kind("dropped residual", without_first, adds),
    Kind("sign of a head", sign_of_a_head, has_heads),
    Kind("moved: one row", one_row, moves),
    Kind("moved: scale 1 + 2^-6", scaled(2**-6), moves),
    Kind("moved: shifted", shifted, lambda seen: moves(seen) and len(seen.shape) > 1),
    Kind("cast: scale 1 + 2^-9", scaled(2**-9), called(*CASTS)),
    Kind("wrong choice", wrong_choice, called("topk")),
)
# What a gradient can suffer, of those.
BENT = tuple(
    kind
    for kind in KINDS
    if kind.name
    in ("scale 1 + 2^-6", "scale 1 + 2^-9", "one row", "one element", "swapped channels",
        "sign of a head", "shifted sequence")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault of the table: which kind, and at which call."""

    kind: Kind
    seen: Seen


def planned(
    seen: list[Seen], dtype: str, seed: str, kinds: Sequence[Kind] = KINDS, each: int = 1
) -> Iterator[Planned]:
    """`each` faults of every kind that this run has a call for, at calls that `seed` chooses."""
    for kind in kinds:
        if dtype not in kind.dtypes:
            continue
        usable = [one for one in seen if kind.fits(one) and _is_storable(kind, one)]
        for nth in range(min(each, len(usable))):
            place = zlib.crc32(f"{seed} {kind.name} {nth}".encode()) % len(usable)
            yield Planned(kind, usable[place])


def _is_storable(kind: Kind, seen: Seen) -> bool:
    """Truncating and narrowing are written for the dtypes of the run alone."""
    if kind.name == "truncated rounding":
        return seen.dtype in ("bfloat16", "float16")
    return kind.name != "cast: scale 1 + 2^-9" or seen.dtype != "float64"
