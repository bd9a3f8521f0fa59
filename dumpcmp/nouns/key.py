"""The names of a run: Op, Slot, the Site of a call, and the Key of a value."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

ROOT = "<root>"  # the op name of the root module, whose path in torch is the empty string
AFTER = "@after"  # in the scope of what ranks do together once the model's forward pass has ended
EFFECTS = "<effects>"  # the scope of reserved ops: what a run leaves behind besides values of ops
_MARK = re.compile(r"@\w+(?=/|$)")


class Op(str):
    """The name of an op: the path of a module, or that and the function that ran in it.

    ``layers.3.attn@1/linear`` is the function ``linear`` in the second call of ``layers.3.attn``.
    """

    __slots__ = ("function", "is_module")  # asked for at every turn, and told once
    function: str  # the function in the module: ``linear``; empty for the module itself
    is_module: bool  # it computes nothing but by the functions inside

    def __new__(cls, text: str = "") -> Op:
        made = super().__new__(cls, text)
        _, slash, made.function = text.partition("/")
        made.is_module = not slash
        return made

    def __reduce__(self) -> tuple[type[Op], tuple[str]]:
        return Op, (str(self),)

    @property
    def is_effect(self) -> bool:
        """Whether it is reserved for effects: no function of the program."""
        return self.startswith("<effects>/")

    @property
    def scope(self) -> str:
        """The module and which call of it: ``layers.3.attn@1``."""
        return self.partition("/")[0]

    @property
    def module(self) -> str:
        """The module's path: ``layers.3.attn``."""
        return self.scope.partition("@")[0]

    @property
    def plain(self) -> Op:
        """The op without the mark that says which call of the module it is in."""
        return Op(_MARK.sub("", self)) if "@" in self else self

    @property
    def family(self) -> tuple[str, str]:
        """The module that it runs in, and its name there: a function, or a child module."""
        if self.function:
            return self.scope, f"/{self.function}"
        parent, _, name = self.rpartition(".")
        return ("", ROOT) if self == ROOT else (parent or ROOT, name)

    @property
    def block(self) -> str:
        """The outermost numbered module that it is in: ``layers.3``; empty where there is none."""
        segments = self.module.split(".")
        for i, segment in enumerate(segments):
            if segment.isdecimal():
                return ".".join(segments[: i + 1])
        return ""

    def is_inside(self, holder: Op) -> bool:
        """Whether it can run inside a call of the module `holder`, as another op than that."""
        path = self.module
        return self != holder and (
            holder == ROOT or path == holder or path.startswith(f"{holder}.")
        )

    def within(self, path: str) -> Op:
        """The op of the same function in the scope `path`."""
        return Op(f"{path}/{self.function}" if self.function else path)


class Slot(str):
    """Which value of a call: ``input.0``, ``output.logits``, ``grad_input.1``, ``param.weight``."""

    __slots__ = (
        "is_generator", "is_gradient", "is_input", "is_output", "is_parameter_gradient",
        "is_weight",
    )  # fmt: skip
    is_input: bool  # it holds what the call was given
    is_weight: bool  # it holds a parameter or a buffer of the module
    is_output: bool  # it holds what the call gave out, forward
    is_gradient: bool  # it belongs to the backward pass
    is_parameter_gradient: bool  # it is what a parameter's gradient is after the backward pass
    is_generator: bool  # it holds the state of a random generator

    def __new__(cls, text: str = "") -> Slot:
        made = super().__new__(cls, text)
        made.is_input = text.startswith(("input", "param", "buffer"))
        made.is_weight = text.startswith(("param.", "buffer."))
        made.is_output = text.startswith("output")
        made.is_gradient = text.startswith("grad")
        made.is_parameter_gradient = text.startswith("grad.")
        made.is_generator = text.startswith("rng.")
        return made

    def __reduce__(self) -> tuple[type[Slot], tuple[str]]:
        return Slot, (str(self),)

    @property
    def kind(self) -> str:
        """What stands before the dot: ``input``, ``grad_output``, ``param``."""
        return self.partition(".")[0]

    @property
    def name(self) -> str:
        """What stands behind the dot: a position, a keyword, or a path of them."""
        return self.partition(".")[2]

    @property
    def value(self) -> Slot:
        """Of a gradient: the slot of the value that it is the gradient of."""
        if self.is_parameter_gradient:
            return Slot(f"param.{self.name}")
        return Slot(self.removeprefix("grad_"))

    @property
    def gradient(self) -> Slot:
        """The slot of this value's gradient."""
        return Slot(f"grad_{self}")


class Site(NamedTuple):
    """Names one call of an op."""

    model: str
    step: int
    op: Op
    call: int

    def key(self, slot: str) -> Key:
        """The Key of a value of this call."""
        return Key(self.model, self.step, self.op, self.call, slot)

    @property
    def place(self) -> str:
        """The call as a report names it: ``layers.3.attn/linear (call 0, token 2)``."""
        return f"{self.op} (call {self.call}, token {self.step})"

    def __str__(self) -> str:
        return f"{self.model}[{self.step}] {self.op}#{self.call}"


@dataclass(frozen=True, slots=True, order=True, init=False)
class Key:
    """Which value of a run this is. Ranks hold shards of it; a Key names the whole."""

    model: str  # name of the root module: "TinyDecoder"
    step: int
    op: Op  # "layers.3.attn", or "layers.3.attn/linear" for a function inside it
    call: int  # nth call: of a module within the step, of a function within its module's call
    slot: Slot  # "output.0", "input.mask", "grad_input.1", "param.weight", "grad.weight"
    _hash: int = field(init=False, repr=False, compare=False)  # taken once
    _site: Site | None = field(init=False, repr=False, compare=False)  # made once

    def __init__(self, model: str, step: int, op: str, call: int, slot: str) -> None:
        _put_model(self, model)  # which takes half the time of object.__setattr__
        _put_step(self, step)
        _put_op(self, op if op.__class__ is Op else Op(op))
        _put_call(self, call)
        _put_slot(self, slot if slot.__class__ is Slot else Slot(slot))
        _put_hash(self, hash((model, step, op, call, slot)))
        _put_site(self, None)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Key], tuple[str, int, str, int, str]]:
        return Key, (self.model, self.step, self.op, self.call, self.slot)  # hashes do not travel

    @property
    def site(self) -> Site:
        """The call that the value belongs to."""
        site = self._site
        if site is None:
            site = Site(self.model, self.step, self.op, self.call)
            _put_site(self, site)
        return site

    def __str__(self) -> str:
        return f"{self.site} {self.slot}"


_put_model, _put_step, _put_op, _put_call, _put_slot, _put_hash, _put_site = (
    Key.__dict__[name].__set__ for name in ("model", "step", "op", "call", "slot", "_hash", "_site")
)
