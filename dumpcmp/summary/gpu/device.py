"""Summaries taken where a tensor lives, as one row of numbers, without waiting for the device."""

from __future__ import annotations

import ctypes
import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from dumpcmp.nouns.errors import CaptureWarning
from dumpcmp.nouns.record import Stored
from dumpcmp.nouns.value import Portion, Value, dtype_named
from dumpcmp.summary.gpu.gaps import ALIGNED, Runs, runs_of
from dumpcmp.summary.gpu.memory import DeviceRow, Tables
from dumpcmp.summary.packing import DIGEST_WORDS, HEAD, Reduction, pack, reduced, results, stored_as
from dumpcmp.summary.sketch import BLOCK, RUN
from dumpcmp.summary.summary import RAW_LIMIT, SEGMENT_SIZE, Recipe, borders, summarise

if TYPE_CHECKING:
    from dumpcmp.summary.gpu.launches import RowMaker

_CHUNK = 64  # blocks whose elements are widened together by the plain form
_MOST_KNOWN = 4096  # shapes whose RowMakers are kept
_PLAIN = (Tensor, Parameter)  # no subclass that may hold something else than it seems
CHECKSUM_DIGEST = ("digest", "checksum")  # told where the checksum is in the digest's place


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A Summary as numbers on the tensor's own device, and what they are."""

    stored: Stored
    numbers: Tensor
    digest: str = ""  # of the tensor's bytes, where they were read on the host
    source: None = None  # what brings the numbers to the host by itself: nothing


class Summariser:
    """Takes Summaries of tensors on any device; one for a whole capture, so that tables stay."""

    def __init__(
        self, recipe: Recipe, reduction: Reduction | None = None, *, checksum: bool = False
    ) -> None:
        self.recipe = recipe
        self.reduction = reduction
        self._checksum = checksum  # in the rows that kernels make, and in no others
        self._tables_for = cache(Tables)
        self._kernels = True  # until they fail once
        self._launches: Any = None  # the module, once it is needed
        # By shape, dtype and device; with whether the elements are summed as they are.
        self._known: dict[tuple[object, ...], tuple[Stored, RowMaker, bool]] = {}
        self._with_gaps: dict[tuple[object, ...], RowMaker | None] = {}  # by stride besides

    def __call__(self, tensor: Tensor, portion: Portion | None = None) -> Packed | DeviceRow | None:
        """The Summary of `tensor`, or None where the tensor itself is smaller.

        `portion` says where a shard lies in its whole.
        """
        with torch._C.DisableTorchFunction():
            known = self._known.get((tensor.shape, tensor.dtype, tensor.device))
            if known and portion is None and type(tensor) in _PLAIN:
                stored, maker, is_ready = known  # nothing is decided twice, and little is asked
                try:
                    if is_ready and (reader := self._reader(tensor)) is not None:
                        return DeviceRow(stored, *reader.row(tensor), again=reader.again)
                    dense = _dense(tensor)
                    flat = dense if is_ready else _summable(dense.detach().view(-1))
                    again = maker.again if is_ready else None
                    return DeviceRow(stored, *maker.row(flat, dense), again=again)
                except Exception as error:
                    self._go_without(error)
            if tensor.numel() <= RAW_LIMIT:
                return None
            with torch.no_grad():
                on_host = tensor.device.type == "cpu"
                return self._on_host(tensor, portion) if on_host else self._away(tensor, portion)

    def _reader(self, tensor: Tensor) -> RowMaker | None:
        """What makes the row of a tensor with gaps as it lies, if kernels can."""
        if tensor.is_contiguous() or self._checksum or tensor.data_ptr() % ALIGNED:
            return None
        key = (tensor.shape, tensor.dtype, tensor.device, tensor.stride())
        if key not in self._with_gaps:
            runs = runs_of(tensor.shape, tensor.stride(), tensor.itemsize)
            if len(self._with_gaps) >= _MOST_KNOWN:
                self._with_gaps.clear()
            self._with_gaps[key] = self._maker(tensor, None, runs) if runs is not None else None
        return self._with_gaps[key]

    def taped(self, tensor: Tensor) -> Packed | None:
        """The Summary of a tensor inside of a CUDA graph that is being captured.

        None where its kernels have not run before: nothing may be compiled or sent there now.
        """
        with torch._C.DisableTorchFunction():
            known = self._known.get((tensor.shape, tensor.dtype, tensor.device))
            if known is None or type(tensor) not in _PLAIN or not known[2]:
                return None
            stored, maker, _ = known
            return Packed(stored, maker.alone(_dense(tensor)))

    def _on_host(self, tensor: Tensor, portion: Portion | None) -> Packed:
        dense = tensor.contiguous()
        value = lent(dense)
        summary = summarise(value, self.recipe, portion)
        if self.reduction is not None:  # which may keep what it is given
            summary = reduced(summary, Value(value.dtype, value.bits.copy()), self.reduction)
        stored, numbers = pack(summary)
        return Packed(stored, torch.from_numpy(numbers), summary.digest)

    def _away(self, tensor: Tensor, portion: Portion | None = None) -> Packed | DeviceRow:
        recipe = self.recipe
        real = tensor.detach()
        if tensor.is_complex():
            real, portion = torch.view_as_real(real), portion.in_parts() if portion else None
        whole = portion.whole if portion else tuple(real.shape)
        dense = real.contiguous().view(-1)
        flat, words = _summable(dense), dense if self._checksum else None
        names, own, problem = self._reduced(tensor)
        stored = stored_as(recipe, whole, names, problem)
        if portion is None and (maker := self._maker(flat, words)) is not None:
            made = self._by_kernel(flat, lambda _: maker.row(flat, words))
            if made is not None:
                stored = stored if words is None else with_told(stored, *CHECKSUM_DIGEST)
                self._learn(tensor, flat, stored, maker)
                row = DeviceRow(stored, *made)
                if not own:
                    return row
                parts = (row.numbers[:HEAD], *own, row.numbers[HEAD:])
                return Packed(stored, torch.cat(parts))
        cuts = borders(whole, recipe.segments) if recipe.size else [0, flat.numel()]
        if portion is None:
            sums, totals = self._passes(flat, cuts)
        else:
            sums, totals = self._scattered(flat, flat_indices(portion, flat.device), cuts)
        head = _head(totals, flat.numel())
        folded = self._folded(sums, recipe) if recipe.size else []
        return Packed(stored, torch.cat([head, *own, *folded]))

    def _passes(self, flat: Tensor, cuts: list[int]) -> tuple[Tensor, Tensor]:
        """Sums by segment and hash, and totals by segment, of a tensor that is its own whole."""
        sums, totals = [], []
        for low, high in itertools.pairwise(cuts):
            for row in range(self.recipe.num_hashes):
                wide, total = self._pass(flat[low:high], low, self.recipe.seed + row)
                sums.append(wide)
                totals += [] if row else [total]
        return torch.stack(sums), torch.stack(totals)

    def _scattered(self, flat: Tensor, indices: Tensor, cuts: list[int]) -> tuple[Tensor, Tensor]:
        """The same of a shard whose elements lie at `indices` of the whole."""
        clean, totals = _totals(flat)
        sums = []
        for low, high in itertools.pairwise(cuts):
            inside = (indices >= low) & (indices < high)
            for row in range(self.recipe.num_hashes):
                tables = self._tables_for(flat.device, self.recipe.seed + row)
                sums.append(scattered(clean * inside, indices, cuts[-1], tables))
        return torch.stack(sums), totals[None]

    def _maker(
        self, flat: Tensor, words: Tensor | None, runs: Runs | None = None
    ) -> RowMaker | None:
        """How a few launches make the packed row, where kernels have this recipe and device."""
        recipe = self.recipe
        if recipe.num_hashes > 1 or recipe.segments or not recipe.size:
            return None
        tables = self._tables_for(flat.device, recipe.seed)
        maker: RowMaker | None = self._by_kernel(
            flat,
            lambda launches: launches.RowMaker(
                flat, recipe.size, HEAD, tables, words=words, runs=runs
            ),
        )
        return maker

    def _learn(self, tensor: Tensor, flat: Tensor, stored: Stored, maker: RowMaker) -> None:
        """Remember the maker for real tensors, where there is no reduction of the user."""
        if self.reduction is not None or tensor.is_complex():
            return
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[tensor.shape, tensor.dtype, tensor.device] = (
            stored, maker, flat.dtype is tensor.dtype,
        )  # fmt: skip

    def _by_kernel(self, flat: Tensor, use: Callable[[Any], Any]) -> Any:
        """What `use` makes of the kernels, or None where there are none for this device."""
        if flat.device.type != "cuda" or not self._kernels:
            return None
        try:
            if self._launches is None:
                self._launches = import_module("dumpcmp.summary.gpu.launches")
            return use(self._launches)
        except Exception as error:  # whatever the compiler of kernels trips over
            self._go_without(error)
            return None

    def _go_without(self, error: Exception) -> None:
        self._kernels = False
        self._known.clear()
        self._with_gaps.clear()
        warnings.warn(
            f"summaries are taken without kernels of their own, and slower: {error}",
            CaptureWarning,
            stacklevel=3,
        )

    def _pass(self, flat: Tensor, start: int, seed: int) -> tuple[Tensor, Tensor]:
        """Sums of the turned blocks, and totals, of elements that begin at index `start`."""
        tables = self._tables_for(flat.device, seed)
        made: tuple[Tensor, Tensor] | None = self._by_kernel(
            flat, lambda launches: launches.summed(flat, start, tables)
        )
        return summed(flat, start, tables) if made is None else made

    def _folded(self, sums: Tensor, recipe: Recipe) -> list[Tensor]:
        """The sketch, row by row, and the segments' sketches."""
        rows = sums.view(-1, recipe.num_hashes, BLOCK)
        tables = [self._tables_for(sums.device, recipe.seed + j) for j in range(recipe.num_hashes)]
        whole = [t.fold(rows[:, j].sum(0), recipe.size) for j, t in enumerate(tables)]
        if not recipe.segments:
            return whole
        parts = [t.fold(row[j], SEGMENT_SIZE) for row in rows for j, t in enumerate(tables)]
        return whole + parts

    def _reduced(self, tensor: Tensor) -> tuple[tuple[str, ...], list[Tensor], str]:
        """The user's own numbers by name, still on the device, or why there are none."""
        if self.reduction is None:
            return (), [], ""

        def kept(number: Any) -> Tensor:
            return torch.as_tensor(number, dtype=torch.float64, device=tensor.device).view(1)

        named, problem = results(self.reduction, tensor.detach(), kept)
        return tuple(named), list(named.values()), problem


def _dense(tensor: Tensor) -> Tensor:
    """`tensor`, or a copy without gaps; to ask first is a fifth of asking for a copy."""
    return tensor if tensor.is_contiguous() else tensor.detach().contiguous()


def with_told(stored: Stored, name: str, word: str) -> Stored:
    """`stored` with one attribute more."""
    return replace(stored, attributes=(*stored.attributes, (name, word)))


def lent(dense: Tensor) -> Value:
    """The elements of a contiguous CPU tensor where they lie, as long as the tensor lives.

    Unlike ``numpy()`` it leaves no mark: a storage that numpy has seen cannot be resized, and
    FSDP resizes.
    """
    dtype = dtype_named(str(dense.dtype))
    lent = memoryview((ctypes.c_char * dense.nbytes).from_address(dense.data_ptr()))
    return Value(dtype, np.frombuffer(lent, dtype.storage).reshape(dense.shape))


def _summable(flat: Tensor) -> Tensor:
    if flat.dtype is torch.bool:
        return flat.view(torch.uint8)
    if flat.dtype.itemsize == 1 and flat.dtype.is_floating_point:
        return flat.to(torch.float32)
    return flat if flat.dtype.is_floating_point else flat.to(torch.float64)


def summed(flat: Tensor, start: int, tables: Tables) -> tuple[Tensor, Tensor]:
    """Sums of the turned blocks, and totals: the plain form, for any device that torch has."""
    clean, totals = _totals(flat)
    first, within = divmod(start, BLOCK)
    last = -(-(start + flat.numel()) // BLOCK)
    tail = (last - first) * BLOCK - within - flat.numel()
    blocks = torch.nn.functional.pad(clean, (within, tail)).view(-1, 256, RUN)
    turns = tables.turns(last)
    total = torch.zeros(256, RUN, dtype=torch.float64, device=flat.device)
    runs = torch.arange(256, device=flat.device)
    for low in range(0, last - first, _CHUNK):
        piece = blocks[low : low + _CHUNK].double()
        rotation, offset, common = turns[:, first + low : first + low + len(piece)].long()
        source = (runs - rotation[:, None]) & 255
        turned = piece.gather(1, source[:, :, None].expand(-1, -1, RUN))
        signs = tables.signs[source + offset[:, None]] * common[:, None, None]
        total += (turned * signs).sum(0)
    return total.view(-1), totals


def _totals(flat: Tensor) -> tuple[Tensor, Tensor]:
    """The elements with 0 for what is not finite, and their totals in the order of `_head`."""
    if flat.dtype not in (torch.float32, torch.float64):
        flat = flat.to(torch.float32)
    finite = torch.isfinite(flat)
    clean = torch.where(finite, flat, 0)
    inf = torch.inf
    totals = torch.stack(
        [
            torch.where(finite, flat, inf).amin().double(),
            torch.where(finite, flat, -inf).amax().double(),
            clean.sum(dtype=torch.float64),
            clean.double().square().sum(),
            flat.isnan().sum().double(),
            (flat == inf).sum().double(),
            (flat == -inf).sum().double(),
            (flat == 0).sum().double(),
        ]
    )
    return clean, totals


def flat_indices(portion: Portion, device: torch.device) -> Tensor:
    """Where each element of a shard lies in its whole, flat."""
    indices = torch.zeros((), dtype=torch.int64, device=device)
    for dim, size in zip(portion.dims, portion.whole, strict=True):
        step = torch.from_numpy(np.ascontiguousarray(dim)).to(device)
        indices = indices[..., None] * size + step
    return indices.view(-1)


def scattered(clean: Tensor, indices: Tensor, end: int, tables: Tables) -> Tensor:
    """Sums of the turned blocks of elements that lie anywhere in a whole of `end` elements."""
    lane, run, block = indices & 63, (indices >> 6) & 255, indices >> 14
    rotation, offset, common = tables.turns(-(-end // BLOCK))[:, block].long()
    signs = tables.signs.view(-1)[RUN * (run + offset) + lane] * common
    total = torch.zeros(BLOCK, dtype=torch.float64, device=clean.device)
    return total.index_add_(0, RUN * ((run + rotation) & 255) + lane, clean.double() * signs)


def _head(totals: Tensor, count: int) -> Tensor:
    """The leading numbers of a packed summary from the totals of its segments."""
    low, high = totals[:, 0].amin(), totals[:, 1].amax()
    total, squares, *odd, zero = totals[:, 2:].sum(0).unbind()
    finite = count - odd[0] - odd[1] - odd[2]
    mean = total / finite
    std = (squares / finite - mean.square()).clamp(min=0).sqrt()
    none = finite == 0
    numbers = [
        *(torch.full_like(total, count), *odd, zero),
        *(torch.where(none, torch.nan, low), torch.where(none, torch.nan, high)),
        *(mean, std, squares.sqrt(), total, squares),
    ]
    return torch.cat([torch.stack(numbers), totals.new_full((DIGEST_WORDS,), -1.0)])
