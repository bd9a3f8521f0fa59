"""Holds what a run gave out against the replay of it: numbers and no opinion."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache, cached_property

import torch
from torch import Tensor

from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.value import Dtype, dtype_named, stored_dtype
from dumpcmp.replay.rating import NO_NOISE
from dumpcmp.replay.running import Rerun
from dumpcmp.replay.small_pieces import SmallPiece, is_small

LEAST = 2.0**-40  # of the terms of sums: what is left of them is taken to be no smaller
_AT_ONCE = 1 << 22  # elements
_WIDEST = 1 << 16  # elements of a row
_UNLIKELY = 32.0  # standard deviations: what is dropped by channels varies more
_EARLY = 1 / 16  # of the largest number
_BITS = {
    torch.float64: torch.int64, torch.float32: torch.int32, torch.bfloat16: torch.int16,
    torch.float16: torch.int16, torch.int64: torch.int64, torch.int32: torch.int32,
}  # fmt: skip


def hold(rerun: Rerun, slot: str, got: Tensor) -> Replay:
    """What `got`, the recorded value of `slot`, differs in from the replay."""
    held = HeldValue(slot, got)
    return held.add(rerun, got) or held.replay()


class HeldValue:
    """Adds up what a value differs in from its replay, which may come in several pieces."""

    def __init__(self, slot: str, got: Tensor) -> None:
        self.slot = slot
        self.dtype: Dtype = stored_dtype(str(got.dtype))
        self._got = got
        self.count = 0
        self.mismatched = 0
        self.is_exact = not self.dtype.eps
        self.is_nearest = self.is_either = False
        self.agree = True
        self.num_ops = 1
        self.squares = _Squares()
        self.along = self.shift = 0.0
        self.worst_row = self.worst_element = 0.0
        self.condition_squared = self.noise_squared = self.terms_squared = 0.0
        self.worst_noise = NO_NOISE

    @cached_property
    def rms(self) -> float:
        """Of the whole: rows and elements are seen in its light."""
        return _rms(self._got)

    def add(self, rerun: Rerun, got: Tensor) -> Replay | None:
        """Hold `got`, a piece or all of the value, against the replay of it, if there is one."""
        expected = rerun.outputs.get(self.slot)
        if expected is None:
            return Replay(unknown=f"its replay gives no {self.slot}")
        if expected.shape != got.shape:
            said = f"{list(expected.shape)} and not {list(got.shape)}"
            return Replay(unknown=f"its replay gives {self.slot} the shape {said}")
        self.num_ops = rerun.num_ops
        self.count += got.numel()
        if not math.isnan(rerun.dropped):
            expected = _undropped(expected, got.detach(), rerun.dropped)
        self.is_exact = self.is_exact or rerun.is_exact
        self.is_nearest, self.is_either = rerun.is_nearest, rerun.is_either
        unwritten = rerun.unwritten.get(self.slot)
        if got.is_meta:  # memory that nobody had written to when it was recorded
            if unwritten is None or not unwritten.all():
                return Replay(unknown=f"nobody had written to {self.slot} when it was recorded")
            got = expected
        if unwritten is not None:  # whatever is there is right
            expected = torch.where(unwritten, got.to(expected.dtype), expected)
        if self.is_exact:
            self._add_exactly(expected, got.detach())
        else:
            self._add_roundly(rerun, expected, got.detach())
        return None

    def _add_exactly(self, expected: Tensor, got: Tensor) -> None:
        for known, seen in _pieces(expected, got):
            known = known.to(seen.dtype)
            if _same_bits(known, seen):
                continue
            known, seen = readable(known), readable(seen)
            differs = known != seen
            if self.dtype.eps:
                differs &= ~(torch.isnan(known) & torch.isnan(seen))
                differs |= _signs(known) != _signs(seen)
                self.agree &= bool((torch.isfinite(known) == torch.isfinite(seen)).all())
            self.mismatched += int(differs.sum())

    def _add_roundly(self, rerun: Rerun, expected: Tensor, got: Tensor) -> None:
        before = self.squares.expected
        condition = rerun.condition.get(self.slot, 1.0)
        terms = rerun.terms.get(self.slot)
        if expected.is_complex():  # a part is made of terms of the other, too
            size = expected.abs() if terms is None else terms
            terms = torch.complex(size, size)
        tensors = [expected, got, *([] if terms is None else [terms])]
        for known, seen, *beside in _pieces(*tensors):
            if is_small(known, seen, *beside):
                self._add_small(known, seen, condition, beside, rerun.is_pointwise)
            else:
                self._add_piece(known, seen, condition, beside, rerun.is_pointwise)
        weight = self.squares.expected - before
        self.condition_squared += condition**2 * weight
        self.noise_squared += rerun.noise.get(self.slot, 0.0) ** 2 * weight
        self.worst_noise = self.worst_noise.max(rerun.worst_noise.get(self.slot, NO_NOISE))

    def _add_piece(
        self, known: Tensor, seen: Tensor, condition: float, beside: list[Tensor], pointwise: bool
    ) -> None:
        wide, rounded = seen.to(torch.float64), known.to(seen.dtype).to(torch.float64)
        known = known.to(torch.float64)
        d, off = wide - known, wide - rounded
        sums = _sums(d, off, known)
        if not all(map(math.isfinite, sums)):  # then it is worth the while to look where
            self.agree &= _nonfinite_agree(wide, rounded, known, seen.dtype)
            finite = torch.isfinite(wide) & torch.isfinite(known) & torch.isfinite(rounded)
            known, d, off = (torch.where(finite, each, 0.0) for each in (known, d, off))
            sums = _sums(d, off, known)
        if self.is_nearest:
            self.mismatched += int((off.abs() > grain_of(seen.dtype)).sum())
        self.squares.add(*sums[:4])
        self.along += sums[4]
        self.shift += sums[5]
        self._add_rows(d, known)
        level = known.abs() if pointwise else known.abs() + self.rms
        for terms in beside:
            terms = terms.to(torch.float64)
            squared = float((terms * terms).sum())
            if not math.isfinite(squared):
                terms = torch.where(torch.isfinite(terms), terms, 0.0)
                squared = float((terms * terms).sum())
            self.terms_squared += squared
            level = level + terms / condition
        self._add_elements(d, level, seen.dtype)

    def _add_small(
        self, known: Tensor, seen: Tensor, condition: float, beside: list[Tensor], pointwise: bool
    ) -> None:
        """The same for few elements, which numpy goes through in a third of the time."""
        held = SmallPiece.of(known, seen, beside)
        if held is None:  # not all is finite
            self._add_piece(known, seen, condition, beside, pointwise)
            return
        if self.is_nearest:
            self.mismatched += held.num_beyond(grain_of(seen.dtype))
        error, expected, fourth, ideal, along, shift = held.sums
        self.squares.add(error, expected, fourth, ideal)
        self.along += along
        self.shift += shift
        if "rms" not in self.__dict__ and self._got.numel() == seen.numel():
            self.rms = math.sqrt(held.squares_seen / seen.numel())
        self.worst_row = max(self.worst_row, held.worst_row(self.rms))
        self.terms_squared += held.terms_squared
        level = 0.0 if pointwise else self.rms
        worst = held.worst_element(level, condition, grain_of(seen.dtype), not pointwise)
        self.worst_element = max(self.worst_element, worst)

    def take(
        self,
        rerun: Rerun,
        sums: Sequence[float],
        terms_squared: float,
        worst_row: float,
        worst_element: float,
        mismatched: int,
    ) -> None:
        """Take the numbers of a value that others held against `rerun`, whole and finite.

        `sums` are as of a piece: of squares and fourth powers, along what is known, and off.
        """
        error, expected, fourth, ideal, along, shift = sums
        condition, noise = rerun.condition.get(self.slot, 1.0), rerun.noise.get(self.slot, 0.0)
        self.num_ops, self.count = rerun.num_ops, self._got.numel()
        self.is_nearest, self.is_either = rerun.is_nearest, rerun.is_either
        self.mismatched = mismatched
        self.squares.add(error, expected, fourth, ideal)
        self.along += along
        self.shift += shift
        self.terms_squared += terms_squared
        self.worst_row, self.worst_element = max(0.0, worst_row), max(0.0, worst_element)
        self.condition_squared = condition**2 * expected
        self.noise_squared = noise**2 * expected
        self.worst_noise = rerun.worst_noise.get(self.slot, NO_NOISE)

    def _add_rows(self, d: Tensor, known: Tensor) -> None:
        """Note the largest error of a row, over its own norm and that of a usual one."""
        if not d.numel():
            return
        errors, norms = torch.linalg.vector_norm(d, dim=-1), torch.linalg.vector_norm(known, dim=-1)
        self.worst_row = max(self.worst_row, _largest(errors, norms + self.rms * math.sqrt(
            d.shape[-1])))  # fmt: skip

    def _add_elements(self, d: Tensor, level: Tensor, dtype: torch.dtype) -> None:
        errors = (d.abs() - grain_of(dtype)).clamp_min(0.0)
        self.worst_element = max(self.worst_element, _largest(errors, level))

    def replay(self) -> Replay:
        """What was added up."""
        if self.is_exact:
            return Replay(
                eps=self.dtype.eps, count=self.count, is_exact=True, mismatched=self.mismatched,
                nonfinite_agree=self.agree, num_ops=self.num_ops,
            )  # fmt: skip
        squares, count = self.squares, max(1, self.count)
        norm = max(math.sqrt(squares.expected), LEAST * math.sqrt(self.terms_squared))
        weight = squares.expected or 1.0
        gone = 1 / LEAST if self.terms_squared and not squares.expected else 1.0
        grain = grain_of(getattr(torch, self.dtype.name)) * math.sqrt(count)
        error, least = math.sqrt(squares.error), 2 * math.sqrt(squares.ideal) + grain
        if not norm:  # what must be zero may be off by the least number, and by no share of zero
            error, least = (error if error > grain else 0.0), 0.0
        return Replay(
            eps=max(self.dtype.eps, _share(least, norm)),
            introduced=_share(error, norm),
            worst_row=self.worst_row,
            worst_element=self.worst_element,
            gain=_share(self.along, norm * norm),
            offset=_share(self.shift / count, norm / math.sqrt(count)),
            count=self.count,
            num_weighty=squares.expected
            / math.sqrt(squares.fourth)
            * (squares.expected / math.sqrt(squares.fourth))
            if squares.fourth
            else 0.0,
            condition=max(1.0, math.sqrt(self.condition_squared / weight), gone),
            noise=math.sqrt(self.noise_squared / weight),
            row_noise=self.worst_noise.row,
            element_noise=self.worst_noise.element,
            nonfinite_agree=self.agree,
            is_nearest=self.is_nearest,
            is_either=self.is_either,
            mismatched=self.mismatched,
            num_ops=self.num_ops,
        )


class _Squares:
    """Sums of squares: of the error, of what is expected, of what the best rounding leaves."""

    def __init__(self) -> None:
        self.error = self.expected = self.ideal = self.fourth = 0.0

    def add(self, error: float, expected: float, fourth: float, ideal: float) -> None:
        self.error += error
        self.expected += expected
        self.fourth += fourth
        self.ideal += ideal


def _sums(d: Tensor, off: Tensor, known: Tensor) -> list[float]:
    """The squares of d, of what is known, of those, of the best rounding; off along it, and off.

    `d` is the error, `off` the error against the replay as the dtype rounds it.
    """
    d, off, known = d.reshape(-1), off.reshape(-1), known.reshape(-1)
    squares, ideal = known * known, d - off
    found = (d @ d, squares.sum(), squares @ squares, ideal @ ideal, off @ known, off.sum())
    if d.is_cpu:
        return [one.item() for one in found]
    return torch.stack(found).tolist()  # one way from the device, not six


def _pieces(*tensors: Tensor) -> Iterator[list[Tensor]]:
    """`tensors`, of one shape, as rows, so many of them at once that the memory is bounded."""
    lines = [rows_of(tensor) for tensor in tensors]
    if 0 < lines[0].numel() <= _AT_ONCE and all(line.is_cpu for line in lines):
        yield lines
        return
    step = max(1, _AT_ONCE // max(1, lines[0].shape[-1]))
    num_rows, device = lines[0].shape[0], lines[0].device
    for start in range(0, num_rows, step):
        part = [line[start : start + step] for line in lines] if num_rows > step else lines
        yield [line if line.device == device else line.to(device) for line in part]


def rows_of(tensor: Tensor) -> Tensor:
    """`tensor` as a matrix of its rows; of a complex one, real and imaginary parts."""
    if tensor.is_complex():
        parts = torch.view_as_real(tensor.resolve_conj())
        tensor = parts.flatten(-2) if tensor.ndim else parts
    width = tensor.shape[-1] if tensor.ndim else 1
    while width > _WIDEST and width % 2 == 0:
        width //= 2
    return tensor.reshape(-1, width) if tensor.numel() else tensor.reshape(0, 1)


def _rms(got: Tensor) -> float:
    """The root of the mean square of what is finite."""
    if not got.numel() or not (got.is_floating_point() or got.is_complex()):
        return 0.0
    total = 0.0
    for (piece,) in _pieces(got.detach()):
        wide = piece.to(torch.float64)
        squared = float(wide.square().sum())
        if not math.isfinite(squared):
            squared = float(torch.where(torch.isfinite(wide), wide, 0.0).square().sum())
        total += squared
    return math.sqrt(total / got.numel())


def _largest(errors: Tensor, levels: Tensor) -> float:
    """The largest error in units of its level; infinite where there is an error and no level."""
    ratios = torch.where(errors > 0, errors / levels, 0.0)
    return float(ratios.max()) if ratios.numel() else 0.0


def _undropped(kept: Tensor, got: Tensor, share: float) -> Tensor:
    """What a dropout gives out that drew as `got` shows; all kept where no such draw is likely."""
    dropped = (got == 0) & (kept != 0)
    found, count = int(dropped.sum()), int((kept != 0).sum())
    unlikely = _UNLIKELY * math.sqrt(max(1.0, count * share * (1 - share)))
    return torch.where(dropped, 0.0, kept) if abs(found - share * count) <= unlikely else kept


def _share(part: float, whole: float) -> float:
    if part == 0:
        return 0.0
    return part / whole if whole else math.copysign(math.inf, part)


@cache
def grain_of(dtype: torch.dtype) -> float:
    """What an element may be off however small it is.

    The subnormals of half precision are computed with, those of others not on all devices.
    """
    limits = torch.finfo(dtype)
    is_short = dtype_named(str(dtype)).least_exponent > -100
    return limits.tiny * limits.eps if is_short else limits.tiny


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape and dtype are one to the bit; False where that is not known.

    Numbers that are equal may be zeros of two signs, and NaN is equal to nothing.
    """
    bits = _BITS.get(one.dtype)
    if bits is None or one.device != other.device:
        return False
    return torch.equal(one.contiguous().view(bits), other.contiguous().view(bits))


def readable(tensor: Tensor) -> Tensor:
    """Floats of 8 bits as wider ones: torch cannot look into them everywhere."""
    is_short = tensor.is_floating_point() and tensor.itemsize == 1
    return tensor.to(torch.float32) if is_short else tensor


def _signs(tensor: Tensor) -> Tensor:
    """Which elements are negative, -0.0 too; NaN has no sign."""
    wide = tensor.to(torch.float32) if tensor.is_floating_point() else tensor
    return torch.signbit(wide) & ~torch.isnan(wide)


def _nonfinite_agree(got: Tensor, rounded: Tensor, known: Tensor, dtype: torch.dtype) -> bool:
    """Whether NaN and the infinities are where they must be; at the edge of the dtype they may."""
    if bool((torch.isfinite(got) & torch.isfinite(rounded)).all()):
        return True
    same = (got == rounded) | (torch.isnan(got) & torch.isnan(rounded))
    limits = torch.finfo(dtype)
    size, is_inf = known.abs() / limits.max, torch.isinf(got)
    # what is computed on the way may overflow a little earlier, an exponential above all
    edge = torch.where(is_inf, size >= _EARLY, (size - 1).abs() <= 4 * limits.eps)
    near = edge & ~torch.isnan(got) & (torch.sign(got) == torch.sign(known))
    return bool((same | near | (torch.isfinite(got) & torch.isfinite(rounded))).all())
