"""The annotations we know: from a call to how it may be partitioned, or why that is not known."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dumpcmp.partitioning.annotation import Annotation, expanded, lengths_of, parse_annotation
from dumpcmp.partitioning.call import OpCall, leaves
from dumpcmp.partitioning.rules import (
    contraction,
    convolution,
    indexing,
    normalization,
    pointwise,
    reduction,
    shaping,
)
from dumpcmp.partitioning.rules.ruling import (
    Adjusted,
    Annotator,
    Arguments,
    Domain,
    NoRule,
    Ruling,
    name_arguments,
    texts,
)
from dumpcmp.partitioning.signature import EQUIVALENTS, canonical, folded, function_of

RULES: Mapping[str, Annotator] = {
    **pointwise.RULES,
    **contraction.RULES,
    **convolution.RULES,
    **normalization.RULES,
    **shaping.RULES,
    **reduction.RULES,
    **indexing.RULES,
}


@dataclass(frozen=True, slots=True)
class Registered:
    """An annotation that the user has given for a function."""

    text: str
    adjusted: tuple[Adjusted, ...] = ()
    domains: Mapping[str, Domain] = field(default_factory=dict)
    synchronised: Mapping[str, str] = field(default_factory=dict)


_REGISTERED: dict[str, Registered] = {}


def register_annotation(
    fsig: str,
    anno: str,
    *,
    adjusted: tuple[Adjusted, ...] = (),
    domains: Mapping[str, Domain] | None = None,
    synchronised: Mapping[str, str] | None = None,
) -> None:
    """Let every call of `fsig` be partitioned as `anno` says, in place of what our table says.

    `adjusted` lists arguments that change with the part, `domains` what numbers a parameter may
    hold, `synchronised` the generator function to run when a name is split.
    """
    parse_annotation(anno)
    _REGISTERED[canonical(fsig)] = Registered(anno, adjusted, domains or {}, synchronised or {})


def registered() -> tuple[tuple[str, Registered], ...]:
    """All annotations that the user has given, to be sent to another process."""
    return tuple(_REGISTERED.items())


def restore(known: tuple[tuple[str, Registered], ...]) -> None:
    """Know what `registered` gave in another process."""
    _REGISTERED.update(known)


@dataclass(frozen=True, slots=True)
class Entry:
    """All that the table says about one call.

    `outputs` may be one text and ``...``, for as many outputs as there are; # is their number.
    """

    call: OpCall
    arguments: Arguments
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    adjusted: tuple[Adjusted, ...] = ()
    domains: Mapping[str, Domain] = field(default_factory=dict)
    synchronised: Mapping[str, str] = field(default_factory=dict)
    buffers: tuple[str, ...] = ()

    def annotation(self, num_outputs: int) -> Annotation:
        """The annotation, for a call that has given `num_outputs` outputs."""
        outputs = list(self.outputs)
        if outputs[-1:] == ["..."]:
            outputs = [outputs[0].replace("#", str(i)) for i in range(num_outputs)]
        text = f"{', '.join(self.inputs)} -> {', '.join(outputs)}"
        shapes = [leaf.shape for leaf in leaves(self.call)]
        return expanded(parse_annotation(text), shapes)

    def lengths(self, annotation: Annotation, outputs: list[tuple[int, ...]]) -> dict[str, int]:
        """How long each name of `annotation` is."""
        shapes = [leaf.shape for leaf in leaves(self.call)]
        return lengths_of(annotation, [*shapes, *outputs], self._counted())

    def _counted(self) -> dict[str, int]:
        """Names that an argument counts: ``groups`` of a group is as long as ``groups`` says."""
        named = {
            a.name: a.parameter for a in self.adjusted if a.how == "share" and a.position is None
        }
        counted = {name: self.arguments.values.get(parameter) for name, parameter in named.items()}
        return {name: value for name, value in counted.items() if isinstance(value, int)}


def is_known(fsig: str) -> bool:
    """Whether the table or the user's registrations know `fsig`; nothing is imported to tell."""
    return canonical(fsig) in _REGISTERED or _rule_for(fsig) is not None


def entry_for(call: OpCall, anno: str = "") -> Entry:
    """What is known about `call`: by `anno`, by the user's registration, or by our table."""
    call = folded(call)
    arguments = name_arguments(call, function_of(call))
    registered = Registered(anno) if anno else _REGISTERED.get(canonical(call.fsig))
    if registered is not None:
        return _by_text(call, arguments, registered)
    rule = _rule_for(call.fsig)
    if rule is None:
        raise NoRule(f"no annotation for {call.fsig}: register one with register_annotation")
    return _by_rule(call, arguments, rule(arguments))


def _rule_for(fsig: str) -> Annotator | None:
    fsig = canonical(fsig)
    if fsig in RULES or fsig in EQUIVALENTS:
        return RULES.get(fsig)
    words = fsig.split(".")
    if words[0] == "aten":
        name = words[1]
    elif ".".join(words[:-1]) in ("torch", "torch.Tensor", "torch.nn.functional", "torch.special"):
        name = words[-1]
    else:
        return None
    in_place = name.endswith("_") and not name.endswith("__")
    return RULES.get(name) or (RULES.get(name[:-1]) if in_place else None)


def _by_rule(call: OpCall, arguments: Arguments, ruling: Ruling) -> Entry:
    return Entry(
        call,
        arguments,
        tuple(texts(ruling, arguments, call)),
        tuple(ruling.outputs),
        ruling.adjusted,
        ruling.domains,
        ruling.synchronised,
        ruling.buffers,
    )


def _by_text(call: OpCall, arguments: Arguments, registered: Registered) -> Entry:
    """A user's annotation. Arguments called like a name shrink with it, as in nnScaler.

    What our table knows of the op besides its dims stays true: which numbers are valid, which
    arguments change with the part, what has to be synchronised.
    """
    inputs, outputs = (
        tuple(part.strip() for part in side.split(",")) for side in registered.text.split("->")
    )
    inputs += ("?",) * (len(leaves(call)) - len(inputs))
    own = Entry(call, arguments, inputs, outputs)
    known = _known(call, arguments)
    renamed = _renaming(known, own)
    words = set(re.findall(r"\w+", registered.text))
    return replace(
        own,
        adjusted=(
            *registered.adjusted,
            *(Adjusted(name, name) for name in arguments.values if name in words),
            *(replace(a, name=renamed[a.name]) for a in known.adjusted if a.name in renamed),
        ),
        domains={**known.domains, **registered.domains},
        synchronised={
            **{renamed[n]: f for n, f in known.synchronised.items() if n in renamed},
            **registered.synchronised,
        },
        buffers=known.buffers,
    )


def _known(call: OpCall, arguments: Arguments) -> Entry:
    nothing = Entry(call, arguments, (), ())
    rule = _rule_for(call.fsig)
    if rule is None:
        return nothing
    try:
        return _by_rule(call, arguments, rule(arguments))
    except NoRule:
        return nothing


def _renaming(known: Entry, own: Entry) -> dict[str, str]:
    """Our names of dims -> the user's names of the same dims, where both lead theirs."""
    if not known.inputs:
        return {}
    ours, theirs = (entry.annotation(len(own.outputs)) for entry in (known, own))
    return {
        mine.leading.text: yours.leading.text
        for one, two in zip(ours.operands, theirs.operands, strict=False)
        if one is not None and two is not None and len(one) == len(two)
        for mine, yours in zip(one, two, strict=True)
        if yours.leading.length is None
    }
