"""The use case of ``dumpcmp map``: propose a mapping between two implementations of a model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dumpcmp.align.mapfile import renaming_of
from dumpcmp.align.pairing import models_in_golden_terms
from dumpcmp.align.port.samples import Samples
from dumpcmp.align.renaming import Renaming, unwrapped
from dumpcmp.align.turning import Turns
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.stores.urls import place
from dumpcmp.comparing.side import Side, archive_at, ask_anew, first_side
from dumpcmp.nouns.errors import AlignError
from dumpcmp.nouns.files import write_whole
from dumpcmp.nouns.selection import make_tap
from dumpcmp.nouns.spoken import counted
from dumpcmp.report.escaping import visible

if TYPE_CHECKING:
    from dumpcmp.align.port.lines import Line

_SHOWN = 12  # names without a counterpart that are told of


@dataclass(frozen=True)
class Proposal:
    """A mapping that two archives suggest, with what speaks for each line."""

    lines: tuple[Line, ...]
    golden_left: tuple[str, ...] = ()  # modules for which nothing was found
    target_left: tuple[str, ...] = ()
    num_same: int = 0  # modules that have the same name on both sides

    @cached_property
    def renaming(self) -> Renaming:
        """The mapping, as a comparison uses it."""
        return renaming_of({line.golden: line.terms for line in self.lines}, "the proposal")

    def text(self) -> str:
        """The mapping file: YAML, each line below its evidence."""
        told = ["# A mapping that dumpcmp proposes: golden's name first. Look it through, then"]
        told += ["#   dumpcmp compare --golden-path ... --my-path ... --mapping THIS_FILE"]
        for line in self.lines:
            told += [f"# {line.evidence}", str(line)]
        told += _named("golden's modules without a counterpart", self.golden_left)
        told += _named("my modules without a counterpart", self.target_left)
        return "\n".join(told) + "\n"

    @property
    def remarks(self) -> tuple[str, ...]:
        """What must be said where a comparison used it unasked."""
        if not self.lines:
            return ()
        lines = counted(len(self.lines), "line of a mapping was", "lines of a mapping were")
        return (
            f"the sides have other names for modules: {lines} found from weights and values; "
            "`dumpcmp map` writes the mapping, with the evidence",
        )

    def raise_if_empty(self) -> None:
        """Raise AlignError where nothing of the two runs is the same, so that nothing is mapped."""
        if not self.lines:
            raise AlignError(
                "no two modules have the same weights or values; kinds of modules that are left: "
                f"golden {len(self.golden_left)}, my side {len(self.target_left)}",
                hint="dump both with the same weights and inputs, and keep values: --keep full",
            )

    def write(self, path: str | Path) -> Path:
        """Write the mapping file; one that is there is never replaced."""
        from dumpcmp.archive.copies import written_there  # comparisons do without all it needs

        path = place(path)
        if path.exists():
            raise AlignError(
                f"{path} is there already", hint="give another name with -o, or remove it"
            )
        with written_there(path) as local:
            write_whole(local, self.text())
        return path


def _named(title: str, names: tuple[str, ...]) -> list[str]:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return [visible(f"# {title}: {', '.join(names[:_SHOWN])}{more}")] if names else []


def propose_mapping(golden: str | Path, target: str | Path) -> Proposal:
    """Propose a mapping between two implementations of a model, from their archives.

        proposal = dumpcmp.propose_mapping("d1", "d2")
        print(proposal.text())
        proposal.write("mapping.yaml")

    Modules are the same where their weights are, or what they give out; the evidence for each line
    stands above it. What one side has in one and the other in several is found, too.
    """
    ask_anew()
    return proposed(first_side(golden, make_tap()), first_side(target, make_tap()))


def mapping_by_values(golden: Archive, target: Archive) -> Proposal | None:
    """A mapping for a comparison without one, where both sides have modules that the other lacks.

    What a partitioned run holds are shards, which tell nothing of the whole.
    """
    if golden.world_size > 1 or target.world_size > 1:
        return None
    ours, theirs = _weighted(golden), _weighted(target)
    if not (ours - theirs and theirs - ours):
        return None
    return proposed(first_side(golden, make_tap()), first_side(target, make_tap()))


def _weighted(archive: Archive) -> set[str]:
    """The modules that have weights in the steps with which models begin."""
    steps = {model: archive.steps(model) for model in archive.models}
    firsts = {step for own in steps.values() for step in own[:1]}
    places = ((model, step) for model, own in steps.items() for step in own if step in firsts)
    keys = (key for place in places for key in archive.keys_of(*place))
    return {unwrapped(key.op) for key in keys if key.slot.is_weight}


def proposed(golden: Side, target: Side) -> Proposal:
    """The mapping that the values of two opened archives suggest."""
    from dumpcmp.align.port.faces import Faces  # most comparisons are of one implementation
    from dumpcmp.align.port.lines import lines_of, loose_lines, unpaired_names
    from dumpcmp.align.port.loose import Loose
    from dumpcmp.align.port.proposing import Port

    lines: dict[str, Line] = {}
    left: tuple[list[str], list[str]] = [], []
    num_same = 0
    for theirs, ours in models_in_golden_terms(golden.listing, target.listing).items():
        port = Port(
            Faces.of(golden.listing, ours), Faces.of(target.listing, theirs),
            _samples(golden), _samples(target),
        )  # fmt: skip
        port.solve()
        num_same += sum(op == one.target.op for op, one in port.pairs.items())
        loose = Loose(port, (ours, theirs))
        loose.solve()
        made = (*loose_lines(loose.found), *lines_of(port))
        lines |= {line.golden: line for line in made if line.golden not in lines}
        for names, faces in zip(left, port.left(), strict=True):
            names += unpaired_names(faces)
    return Proposal(tuple(lines.values()), tuple(left[0]), tuple(left[1]), num_same)


def turns_between(golden: Side, target: Side, renaming: Renaming) -> Turns | None:
    """How the dims of two implementations lie; None where nothing says that they are two."""
    if not (renaming.rules or renaming.merges):
        return None
    return Turns(_samples(golden).numbers, _samples(target).numbers)


def _samples(side: Side) -> Samples:
    return Samples(side.listing, archive_at(side.archive.path).load)
