"""The annotations we know: from a call to how it may be partitioned, or why that is not known."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dumpcmp.partitioning.annotation import Annotation, expanded, lengths_of, parse_annotation
from dumpcmp.partitioning.call import OpCall, leaves
from dumpcmp.partitioning.configuration import PartitionError
from dumpcmp.partitioning.rules import RULES
from dumpcmp.partitioning.rules.ruling import (
    Adjusted,
    Annotator,
    Arguments,
    Domain,
    NoRule,
    Ruling,
    name_arguments,
    ruling_of,
    texts,
)
from dumpcmp.partitioning.signature import EQUIVALENTS, OPERATORS, canonical, folded, function_of

# What users have registered: signature -> the annotation's text, and what a split of it involves.
Registered = tuple[str, Ruling]
_REGISTERED: dict[str, Registered] = {}

# Functions of nnScaler whose parameters are called as those of an op that is in the table.
_SAME_RULE = {
    "nnscaler.runtime.function.identity": "clone",
    "nnscaler.runtime.function.index_select": "index_select",
    "nnscaler.runtime.function.layer_norm": "layer_norm",
    "nnscaler.runtime.function.nndropout": "dropout",
    "nnscaler.runtime.function.to": "to",
}


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
    ruling = Ruling({}, (), adjusted, domains or {}, synchronised or {})
    _REGISTERED[canonical(fsig)] = (anno, ruling)


def registered() -> tuple[tuple[str, Registered], ...]:
    """All annotations that the user has given, to be sent to another process."""
    return tuple(_REGISTERED.items())


def restore(known: tuple[tuple[str, Registered], ...]) -> None:
    """Know what `registered` gave in another process."""
    _REGISTERED.update(known)


@dataclass(frozen=True, slots=True)
class Entry:
    """All that the table says about one call.

    The ruling's outputs may be one text and ``...``, for as many as there are; # is their number.
    """

    call: OpCall
    arguments: Arguments
    inputs: tuple[str, ...]  # the dims of every leaf of the call
    ruling: Ruling

    def annotation(self, num_outputs: int) -> Annotation:
        """The annotation, for a call that has given `num_outputs` outputs."""
        outputs = list(self.ruling.outputs)
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
        values = self.arguments.values
        counts = (a for a in self.ruling.adjusted if a.how == "share" and a.position is None)
        found = {a.name: values.get(a.parameter) for a in counts}
        return {name: value for name, value in found.items() if isinstance(value, int)}


def is_known(fsig: str) -> bool:
    """Whether the table or the user's registrations know `fsig`; nothing is imported to tell."""
    fsig = canonical(fsig)
    return fsig in _REGISTERED or fsig in EQUIVALENTS or _rule_for(fsig) is not None


def entry_for(call: OpCall, anno: str = "") -> Entry:
    """What is known about `call`: by `anno`, by the user's registration, or by our table."""
    call = folded(call)
    arguments = name_arguments(call, function_of(call))
    registered = (anno, Ruling({}, ())) if anno else _REGISTERED.get(canonical(call.fsig))
    if registered is not None:
        return _by_text(call, arguments, *registered)
    rule = _rule_for(call.fsig)
    if rule is None:
        raise NoRule(f"no annotation for {call.fsig}: register one with register_annotation")
    return _by_rule(call, arguments, rule)


def _rule_for(fsig: str) -> Annotator | str | None:
    fsig = canonical(fsig)
    if fsig in RULES or fsig in EQUIVALENTS:
        return RULES.get(fsig) or RULES.get(_SAME_RULE.get(fsig, ""))
    words = fsig.split(".")
    if words[0] == "aten":
        name = words[1] if len(words) < 4 else ""
    elif words[0] == "operator":
        name = OPERATORS.get(".".join(words[1:]), "")
    elif ".".join(words[:-1]) in ("torch", "torch.Tensor", "torch.nn.functional", "torch.special"):
        name = words[-1]
    else:
        return None
    in_place = name.endswith("_") and not name.endswith("__")
    return RULES.get(name) or (RULES.get(name[:-1]) if in_place else None)


def _by_rule(call: OpCall, arguments: Arguments, rule: Annotator | str) -> Entry:
    try:
        ruling = ruling_of(rule, arguments)
        inputs = tuple(texts(ruling, arguments, call))
    except (LookupError, TypeError, ValueError) as error:
        raise PartitionError(
            f"the arguments of {call} do not fit the op: {error}", hint="does the call itself run?"
        ) from error
    return Entry(call, arguments, inputs, ruling)


def _by_text(call: OpCall, arguments: Arguments, text: str, own: Ruling) -> Entry:
    """A user's annotation. Arguments called like a name shrink with it, as in nnScaler.

    What our table knows of the op besides its dims stays true: which numbers are valid, which
    arguments change with the part, what has to be synchronised.
    """
    inputs, outputs = (tuple(dims.strip() for dims in side.split(",")) for side in text.split("->"))
    inputs += ("?",) * (len(leaves(call)) - len(inputs))
    entry = Entry(call, arguments, inputs, replace(own, outputs=outputs))
    known = _known(call, arguments)
    renamed, known_ruling = _renaming(known, entry), known.ruling
    words = set(re.findall(r"\w+", text))
    ruling = Ruling(
        {},
        outputs,
        (
            *own.adjusted,
            *(Adjusted(name, name) for name in arguments.values if name in words),
            *(replace(a, name=renamed[a.name]) for a in known_ruling.adjusted if a.name in renamed),
        ),
        {**known_ruling.domains, **own.domains},
        {renamed[n]: f for n, f in known_ruling.synchronised.items() if n in renamed}
        | {**own.synchronised},
        known_ruling.buffers,
    )
    return replace(entry, ruling=ruling)


def _known(call: OpCall, arguments: Arguments) -> Entry:
    nothing = Entry(call, arguments, (), Ruling({}, ()))
    rule = _rule_for(call.fsig)
    if rule is None:
        return nothing
    try:
        return _by_rule(call, arguments, rule)
    except NoRule:
        return nothing


def _renaming(known: Entry, own: Entry) -> dict[str, str]:
    """Our names of dims -> the user's names of the same dims, where both lead theirs."""
    if not known.inputs:
        return {}
    ours, theirs = (entry.annotation(len(own.ruling.outputs)) for entry in (known, own))
    return {
        mine.leading.text: yours.leading.text
        for one, two in zip(ours.operands, theirs.operands, strict=False)
        if one is not None and two is not None and len(one) == len(two)
        for mine, yours in zip(one, two, strict=True)
        if yours.leading.length is None
    }
