"""Which weights of a checkpoint a weight is made of: qkv, gate_up, stacks of experts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

WRAPPERS = frozenset((
    "_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "base_layer",
))  # fmt: skip
# Segments that name several projections in one, and how those are called one by one, in order.
_QKV = (
    ("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("q", "k", "v"), ("wq", "wk", "wv"),
    ("q_lin", "k_lin", "v_lin"), ("to_q", "to_k", "to_v"),
)  # fmt: skip
_GATE_UP = (("gate_proj", "up_proj"), ("w1", "w3"), ("gate", "up"), ("wi_0", "wi_1"))
FUSED: dict[str, Sequence[tuple[str, ...]]] = {
    **dict.fromkeys(
        ("qkv_proj", "qkv", "query_key_value", "Wqkv", "c_attn", "linear_qkv", "to_qkv"), _QKV
    ),
    **dict.fromkeys(("gate_up_proj", "gate_up", "w13", "linear_fc1", "wi", "w1_w3"), _GATE_UP),
    "kv_proj": [one[1:] for one in _QKV],
    "fused_qkv_a_proj_with_mqa": [("q_a_proj", "kv_a_proj_with_mqa")],
}
_SINGLE_EXPERT = (("down_proj",), ("w2",))
_EXPERT_STACKS = {
    "w13": _GATE_UP, "gate_up_proj": _GATE_UP, "w2": _SINGLE_EXPERT, "down_proj": _SINGLE_EXPERT,
    "gate_proj": (("gate_proj",), ("w1",)), "up_proj": (("up_proj",), ("w3",)),
}  # fmt: skip
_STACK = re.compile(
    r"(?P<before>.*\bexperts)\.(?P<word>w13|w2|gate_up_proj|down_proj|gate_proj|up_proj)"
    r"(?:[._](?P<rest>weight\w*|bias|scale\w*))?"
)
_EXPERT = re.compile(r"(?P<before>.*\bexperts)\.(?P<number>\d{1,5})\.(?P<word>\w+)\.(?P<rest>.+)")
_BLOCK = re.compile(r"(?:^|.*?\.)(?P<number>\d+)\.(?P<rest>.+)")
_EMBEDDINGS = ("embed_tokens", "wte", "word_embeddings", "tok_embeddings", "embed", "embed_in")


@dataclass(frozen=True, slots=True)
class WeightPart:
    """A whole weight of the checkpoint, or the `number`-th of `of` equal runs of its rows."""

    name: str
    number: int = 0
    of: int = 1
    expert: int | None = None  # of a stack
    rows: tuple[int, int] | None = None  # the first and the end, where parts have other sizes


RowsOf = Callable[[str], int]  # of a weight beside the one in question; 0 if there is none
# For each expert, or once, what a weight is made of, in order.
Composition = tuple[tuple[WeightPart, ...], ...]


def plain_name(name: str) -> str:
    """A name without the segments that wrappers of a model put into it."""
    return ".".join(word for word in name.split(".") if word not in WRAPPERS)


class WeightNames:
    """The names of a checkpoint's weights, and what other names may stand for."""

    def __init__(self, names: Iterable[str]) -> None:
        self._exact = {plain_name(name): name for name in names}
        self._by_end: dict[str, list[str]] = defaultdict(list)
        self._by_block: dict[tuple[str, str], list[str]] = defaultdict(list)
        for plain, name in self._exact.items():
            words = plain.split(".")
            for start in range(len(words)):
                self._by_end[".".join(words[start:])].append(name)
            if block := _BLOCK.fullmatch(plain):
                self._by_block[block["number"], block["rest"]].append(name)

    def find(self, name: str) -> str | None:
        """The weight of this name, whatever prefix either side has; None if there is not just one.

        First the whole name; then a name that ends with it, or with which it ends; then the name
        from the first number on, as in ``model.layers.0.`` and ``transformer.h.0.``.
        """
        plain = plain_name(name)
        if plain in self._exact:
            return self._exact[plain]
        words = plain.split(".")
        for start in range(len(words)):
            found = self._by_end.get(".".join(words[start:]), [])
            is_whole = [one for one in found if start == 0 or plain.endswith(f".{plain_name(one)}")]
            if len(is_whole) == 1 and (start == 0 or len(words) - start > 1):
                return is_whole[0]
        block = _BLOCK.fullmatch(plain)
        found = self._by_block.get((block["number"], block["rest"]), []) if block else []
        return found[0] if len(found) == 1 else None

    def compositions(self, name: str, rows_of: RowsOf) -> Iterator[Composition]:
        """What the weight called `name` may be made of, the most likely first.

        `rows_of` tells how many rows a weight beside it has.
        """
        if found := self.find(name):
            yield ((WeightPart(found),),)
            for word in _halved(name):
                num = len(FUSED[word][0])
                yield (tuple(WeightPart(found, i, num) for i in range(num)),)
        for word, alternatives in FUSED.items():
            if word in _segments(name):
                yield from self._fused(name, word, alternatives)
        yield from self._stacked(name)
        yield from self._unstacked(name)
        yield from self._split(name, rows_of)
        if _last_module(name) in ("lm_head", "output", "head", "embed_out"):
            for word in _EMBEDDINGS:
                tied = [one for end, ones in self._by_end.items() if end == f"{word}.weight"
                        for one in ones]  # fmt: skip
                if len(tied) == 1:
                    yield ((WeightPart(tied[0]),),)

    def _fused(
        self, name: str, word: str, alternatives: Sequence[tuple[str, ...]]
    ) -> Iterator[Composition]:
        for parts in alternatives:
            found = [self.find(_replaced(name, word, part)) for part in parts]
            if None not in found:
                yield (tuple(WeightPart(str(one)) for one in found),)

    def _stacked(self, name: str) -> Iterator[Composition]:
        """A stack of experts, of which the checkpoint has each by itself."""
        stack = _STACK.fullmatch(plain_name(name))
        for parts in _EXPERT_STACKS[stack["word"]] if stack else ():
            assert stack is not None
            rest = stack["rest"] or "weight"
            experts: list[tuple[WeightPart, ...]] = []
            while found := self._expert(stack["before"], len(experts), parts, rest):
                experts.append(found)
            if experts:
                yield tuple(experts)

    def _expert(
        self, before: str, number: int, parts: Sequence[str], rest: str
    ) -> tuple[WeightPart, ...]:
        found = [self.find(f"{before}.{number}.{part}.{rest}") for part in parts]
        return () if None in found else tuple(WeightPart(str(one)) for one in found)

    def _unstacked(self, name: str) -> Iterator[Composition]:
        """One expert, of which the checkpoint has a stack."""
        expert = _EXPERT.fullmatch(plain_name(name))
        if not expert:
            return
        for word, alternatives in _EXPERT_STACKS.items():
            for parts in alternatives:
                if expert["word"] in parts:
                    number, of = parts.index(expert["word"]), len(parts)
                    for between in (".", "_", ""):
                        rest = f"{between}{expert['rest']}" if between else ""
                        if found := self.find(f"{expert['before']}.{word}{rest}"):
                            yield ((WeightPart(found, number, of, int(expert["number"])),),)

    def _split(self, name: str, rows_of: RowsOf) -> Iterator[Composition]:
        """One projection, of which the checkpoint has several in one, one above the other."""
        words = _segments(name)
        for fused, alternatives in FUSED.items():
            for parts in alternatives:
                for part in set(parts) & words:
                    found = self.find(_replaced(name, part, fused))
                    sizes = [rows_of(_replaced(name, part, other)) for other in parts]
                    if found and all(sizes):
                        start = sum(sizes[: parts.index(part)])
                        end = start + sizes[parts.index(part)]
                        yield ((WeightPart(found, rows=(start, end)),),)


def _halved(name: str) -> list[str]:
    """The words of `name` that stand for projections of equal size."""
    return [word for word in _segments(name) & FUSED.keys() if FUSED[word] is _GATE_UP]


def _segments(name: str) -> frozenset[str]:
    return frozenset(name.split("."))


def _replaced(name: str, word: str, other: str) -> str:
    return ".".join(other if one == word else one for one in name.split("."))


def _last_module(name: str) -> str:
    words = plain_name(name).split(".")
    return words[-2] if len(words) > 1 else ""
