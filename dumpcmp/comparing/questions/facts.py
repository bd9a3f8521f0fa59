"""Puts together what is known of each value, for the judge: typed facts, sources and takers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import or_

from dumpcmp.align.counting import Counting
from dumpcmp.comparing.batches import run_batched
from dumpcmp.comparing.measuring import Tell
from dumpcmp.comparing.paired_calls import call_differences
from dumpcmp.comparing.questions.between_steps import BetweenSteps
from dumpcmp.comparing.questions.checks import CallCheck, CallRecords, check_calls
from dumpcmp.comparing.questions.step_programs import RunValues, StepPrograms
from dumpcmp.comparing.questions.verdicts import Absence, JudgedFacts, Meaning
from dumpcmp.comparing.requests import Asking, unasked
from dumpcmp.comparing.stopped import said_of_ranks
from dumpcmp.comparing.summaries import is_zero_everywhere
from dumpcmp.comparing.terms import terms_given
from dumpcmp.comparing.updates import shown_sums
from dumpcmp.comparing.ways import Ways
from dumpcmp.judge.replaying import wrong
from dumpcmp.judge.tolerances import APART, STANDS_OUT
from dumpcmp.nouns.arithmetic import gives_memory
from dumpcmp.nouns.calling import CallDifference
from dumpcmp.nouns.given import argument_tree
from dumpcmp.nouns.key import ROOT, Key, Site
from dumpcmp.nouns.leaf import LeafFinding
from dumpcmp.nouns.replay import Replay
from dumpcmp.nouns.row import UNMEASURED, LaidOut, Measured, Pair, Trouble, Unwritten
from dumpcmp.nouns.spoken import ranks_named
from dumpcmp.shadows.kernel_checks import load_value
from dumpcmp.shadows.kernel_regions import check_regions, is_compiled
from dumpcmp.shadows.program import Node, Program, ValueId
from dumpcmp.shadows.proving import Proof, ProofAnswer, ProofFinding, call_digests
from dumpcmp.shadows.rewritten_memory import written_outside

_NO_CHECK = Replay()
_FOUND = 1 << 10  # a pair at which something was found tells more than any other name of its values
_COVERED_LATER = (Trouble.SHAPE, Trouble.UNSOLVED)  # if what was made of a value agrees


@dataclass(eq=False)
class Facts:
    """What is known of the pairs of some steps."""

    pairs: Sequence[Pair]
    measured: Mapping[Pair, Measured]
    steps: Sequence[StepPrograms]
    golden: RunValues
    target: RunValues
    ways: Ways
    counting: Counting
    leaves: Mapping[Pair, LeafFinding]
    between: BetweenSteps
    updates: Mapping[Pair, Replay]  # what optimizers made, against golden's on the same gradients
    rounded: Mapping[Pair, str] = field(default_factory=dict)  # leaves, by declared levels
    codes: Collection[Pair] = ()  # of which the target has codes where golden has numbers
    checks: dict[tuple[str, ValueId], Replay] = field(default_factory=dict)
    settled: set[tuple[str, ValueId]] = field(default_factory=set)
    starts: Mapping[Pair, str] = field(default_factory=dict)
    wrong_regions: dict[tuple[str, ValueId], str] = field(default_factory=dict)

    # the data flow

    @cached_property
    def of_golden(self) -> dict[ValueId, Pair]:
        """The pair by which each of golden's values is judged."""
        return self._judged_by(is_golden=True)

    @cached_property
    def of_target(self) -> dict[ValueId, Pair]:
        return self._judged_by(is_golden=False)

    def _judged_by(self, *, is_golden: bool) -> dict[ValueId, Pair]:
        found: dict[ValueId, tuple[int, Pair]] = {}
        run = self.golden if is_golden else self.target
        for some, main in self._groups:
            for pair in some:
                key = pair.golden if is_golden else pair.target
                if key is None:
                    continue
                for place in run.places(key):
                    rank = (
                        2 * (place.key == key or bool(self._told_at(run, place, key))) + pair.both
                    )
                    if place not in found or found[place][0] < rank:
                        found[place] = rank, main
        return {place: main for place, (_, main) in found.items()}

    @cached_property
    def _groups(self) -> list[tuple[list[Pair], Pair]]:
        """Pairs of the same two values, and the one of them by which they are judged."""
        groups: dict[tuple[object, ...], list[Pair]] = {}
        for pair in self.pairs:
            ends = tuple((run is self.golden, *run.places(key)) for run, key in self._sides(pair))
            groups.setdefault(ends, []).append(pair)
        return [(some, max(some, key=self._telling)) for some in groups.values()]

    def _telling(self, pair: Pair) -> int:
        """How well a pair tells where its values come from."""
        found = _FOUND * (pair in self._named)
        for run, key in self._sides(pair):
            told = [
                self._told_at(run, place, key) + (place.key == key) for place in run.places(key)
            ]
            found += 2 * max(told, default=0) + (run is self.target)
        return found

    @cached_property
    def _named(self) -> set[Pair]:
        """Pairs at which something was found of start or program."""
        answers = (ProofAnswer.DIFFERENT_PROGRAM, ProofAnswer.DIFFERENT_START)
        return {pair for answer in answers for pair in self.findings(answer)}

    @cached_property
    def mains(self) -> dict[Pair, Pair]:
        return {pair: main for some, main in self._groups for pair in some}

    def _told_at(self, run: RunValues, place: ValueId, key: Key) -> int:
        """How far what is known of how a value was made is told under this name of it."""
        node = run.producer(place)
        if node is None or node.own is None:
            return 0
        side = "golden" if run is self.golden else "target"
        blamed = self.checks.get((side, place), _NO_CHECK).blamed
        if blamed:  # which is worth more than whose gradient it is
            return 16 * (str(key.site) == blamed[0] and key.slot.is_gradient)
        return 4 * ((key.op, key.call, key.slot) == (node.call.op, node.call.call, node.own.slot))

    @cached_property
    def sources(self) -> dict[Pair, list[Pair]]:
        """What each value was computed from, or is."""
        found: dict[Pair, list[Pair]] = {}
        for pair in self.pairs:
            before: dict[Pair, None] = {}
            for run, key in self._sides(pair):
                mains = self._mains(run)
                for place in run.places(key):
                    main = mains.get(place)
                    if main is not None and main is not pair and main is not self.mains[pair]:
                        before[main] = None
                        continue
                    node = run.producer(place)
                    for value in node.takes.values() if node else ():
                        if value in mains and mains[value] is not pair:
                            before[mains[value]] = None
                    if node is None and place.key.slot.is_gradient:
                        before |= dict.fromkeys(self._given_out_in(run, place))
                    drawn = self._generators.get((run is self.golden, key.site), ())
                    before |= dict.fromkeys(drawn if node else ())
            before |= dict.fromkeys(self.between.sources(pair))
            before.pop(pair, None)
            found[pair] = list(before)
        return found

    def _given_out_in(self, run: RunValues, gradient: ValueId) -> Iterator[Pair]:
        """What a model gave out, of which a loss that was not recorded made a gradient."""
        mains = self._mains(run)
        for value in self._outputs[run is self.golden].get((gradient.rank, gradient.key.step), ()):
            if value in mains:
                yield mains[value]

    @cached_property
    def _outputs(self) -> dict[bool, dict[tuple[int, int], list[ValueId]]]:
        """What the model gave out on each rank in each step."""
        found: dict[bool, dict[tuple[int, int], list[ValueId]]] = {True: {}, False: {}}
        for run in (self.golden, self.target):
            for program in run.programs:
                for value in (effect.value for effect in program.effects):
                    if not value.key.slot.is_gradient:
                        place = value.rank, value.key.step
                        found[run is self.golden].setdefault(place, []).append(value)
        return found

    @cached_property
    def _generators(self) -> dict[tuple[bool, Site], list[Pair]]:
        """The states of generators that calls drew from."""
        found: dict[tuple[bool, Site], list[Pair]] = {}
        for pair in self.pairs:
            if pair.key.slot.is_generator:
                for run, key in self._sides(pair):
                    found.setdefault((run is self.golden, key.site), []).append(pair)
        return found

    def _mains(self, run: RunValues) -> dict[ValueId, Pair]:
        return self.of_golden if run is self.golden else self.of_target

    def _sides(self, pair: Pair) -> Iterator[tuple[RunValues, Key]]:
        if pair.golden is not None:
            yield self.golden, pair.golden
        if pair.target is not None:
            yield self.target, pair.target

    @cached_property
    def takers(self) -> dict[Pair, list[Pair]]:
        """What was made of each value that could not be held against the other side's."""
        found: dict[Pair, list[Pair]] = {}
        for pair in self.pairs:
            if pair.both and self.measured_of(pair).trouble not in _COVERED_LATER:
                continue
            after: dict[Pair, None] = {}
            for run, key in self._sides(pair):
                mains = self._mains(run)
                for place in run.places(key):
                    if mains.get(place) is not pair and place in mains:
                        after[mains[place]] = None
                    for node in run.consumers(place):
                        for value in node.gives.values():
                            if value in mains and mains[value] is not pair:
                                after[mains[value]] = None
            found[pair] = list(after)
        return found

    # checks

    def check(self, workers: Executor, allow: frozenset[str], tell: Tell | None = None) -> None:
        """Run again what was not the same on both sides, each call on its own inputs."""
        tasks: list[CallCheck] = []
        names: list[tuple[str, Node]] = []
        for side, run in (("golden", self.golden), ("target", self.target)):
            others = self.settling("target" if side == "golden" else "golden")
            for program in run.programs:
                self._check_regions(side, run, program)
                for node in program.nodes:
                    if not node.gives or is_compiled(node):
                        continue
                    sign = self._sign(side, program, node)
                    if sign is not None and sign in others:
                        self.settled |= {(side, value) for value in node.gives.values()}
                        continue
                    tasks.append(self._task(side, run, program, node, allow))
                    names.append((side, node))
            for node in dict.fromkeys(run.gradients.values()):
                program = next(each for each in run.programs if _is_of(each, node))
                if node.gives.items() and not program.producers.keys() & node.gives.values():
                    tasks.append(self._task(side, run, program, node, allow))
                    names.append((side, node))
        run_of = {"golden": self.golden, "target": self.target}
        sizes = [task.nbytes for task in tasks]
        total, done = sum(sizes), 0
        results = run_batched(check_calls, tasks, workers)
        for (side, node), nbytes, found in zip(names, sizes, results, strict=True):
            for slot, replay in found.items():
                own = run_of[side].gradients.get(node.gives[slot])
                self.checks[side, node.gives[slot]] = _alone_on_rank(
                    replay, own, is_all=run_of[side].is_in_parts
                )
            done += nbytes
            if tell and nbytes:
                tell(done, total)
        for name in (
            "of_golden",
            "of_target",
            "mains",
            "_groups",
        ):  # what is wrong may be told elsewhere
            self.__dict__.pop(name, None)

    def settling(self, side: str) -> set[tuple[object, ...]]:
        found = self._signs.get(side)
        if found is None:
            run = self.golden if side == "golden" else self.target
            found = self._signs[side] = {
                sign
                for program in run.programs
                for node in program.nodes
                if (sign := self._sign(side, program, node)) is not None
            }
        return found

    def _sign(self, side: str, program: Program, node: Node) -> tuple[object, ...] | None:
        """What a call did to which bytes, in which of golden's steps."""
        sign, place = call_digests(program, node), (program.model, program.step)
        step = self.counting.in_golden_terms(*place) if side == "target" else program.step
        return None if sign is None else (step, *sign)

    @cached_property
    def _signs(self) -> dict[str, set[tuple[object, ...]]]:
        return {}

    def _check_regions(self, side: str, run: RunValues, program: Program) -> None:
        nodes = [node for node in program.nodes if is_compiled(node) and node.gives]
        if not nodes:
            return
        read = partial(load_value, run.side.archive, program)
        unknown: dict[ValueId, str] = {}
        for finding in check_regions(program, nodes, read):
            for value in finding.node.gives.values():
                if finding.unknown:
                    unknown[value] = finding.unknown
                else:
                    self.wrong_regions[side, value] = finding.wrong
        for node in nodes:
            for value in node.gives.values():
                self.checks[side, value] = Replay(unknown=unknown.get(value, ""))

    def _task(
        self, side: str, run: RunValues, program: Program, node: Node, allow: frozenset[str]
    ) -> CallCheck:
        argument_tree(node.call)  # an archive that is damaged ends the comparison
        own = _records(run, program, node)
        other = None
        if side == "target" and node.own is None:
            other = self._matching_call(node)
        is_apart = any(
            (pair := self.of_target.get(value)) is not None and self._apart(pair) > APART
            for value in node.gives.values()
        )
        return CallCheck(node.call, own, other, node.own, allow, is_apart)

    def _apart(self, pair: Pair) -> float:
        metrics = self.measured_of(pair).metrics
        return metrics.rel_l2 if metrics is not None and metrics.rel_l2 > 0 else 0.0

    def _matching_call(self, node: Node) -> CallRecords | None:
        """What golden recorded of the call that matches."""
        for value in node.gives.values():
            pair = self.of_target.get(value)
            if pair is None or pair.golden is None:
                continue
            for place in self.golden.places(pair.golden):
                for program in self.golden.programs:
                    other = program.producers.get(place)
                    if other is not None and other.own is None:
                        return _records(self.golden, program, other)
        return None

    def _check_of(self, side: str, run: RunValues, key: Key | None) -> Replay | None:
        if key is None:
            return None
        found = [self.checks.get((side, place)) for place in run.places(key)]
        known = [one for one in found if one is not None]
        return max(known, key=_doubt) if known else None

    def _region_of(self, side: str, run: RunValues, key: Key | None) -> str:
        """What is wrong with what a compiled region stores."""
        places = () if key is None else run.places(key)
        return next(filter(None, (self.wrong_regions.get((side, one)) for one in places)), "")

    def _is_settled(self, side: str, run: RunValues, key: Key | None) -> bool:
        if key is None:
            return False
        places = list(run.places(key))
        return bool(places) and all((side, place) in self.settled for place in places)

    # facts

    def all(self, is_usual: bool) -> list[JudgedFacts]:
        partings = self.findings(ProofAnswer.DIFFERENT_PROGRAM) if is_usual else {}
        starts = self.findings(ProofAnswer.DIFFERENT_START) if is_usual else {}
        told = {self.mains[pair]: finding.said for pair, finding in self.leaves.items()}
        others = {self.mains[pair]: said for pair, said in starts.items()}
        self.starts = others | {
            main: said for main, said in told.items() if not self._is_made(main)
        }
        asked = (
            Asking.of(self.golden.side.archive),
            Asking.of(self.target.side.archive, self.counting),
        )
        clean = self._clean()
        return [self._facts(pair, partings, asked, self.lost, pair in clean) for pair in self.pairs]

    @cached_property
    def lost(self) -> str:
        """Which ranks stopped or are missing: what they lack is no difference of programs."""
        stopped = [side.facts.stopped for side in (self.golden.side, self.target.side)]
        return "; ".join(said for one in stopped for said in said_of_ranks(one))

    def measured_of(self, pair: Pair) -> Measured:
        first = pair if pair in self.measured else pair.repeats
        return self.measured.get(first, UNMEASURED) if first else UNMEASURED

    def _clean(self) -> set[Pair]:
        """Outputs of calls whose inputs are the same to the bit on both sides."""
        found = set()
        for pair in self.pairs:
            before = () if pair.key.slot.is_gradient else self.sources[pair]  # gradients are sums
            if before and pair.both and all(self._is_equal(each) for each in before):
                found.add(pair)
        return found

    def _is_equal(self, pair: Pair) -> bool:
        metrics = self.measured_of(pair).metrics
        return metrics is not None and metrics.equal

    def _facts(
        self,
        pair: Pair,
        partings: Mapping[Pair, str],
        asked: tuple[Asking, Asking],
        lost: str,
        is_clean: bool,
    ) -> JudgedFacts:
        measured = self.measured_of(pair)
        absence, said = self._absence(pair, asked, lost) if not pair.both else (Absence.NONE, "")
        conditions = self.ways.conditions(pair, inputs_equal=is_clean, reference=measured.reference)
        is_main = self.mains[pair] is pair
        check = self._check_of("target", self.target, pair.target) if is_main else None
        update = self.updates.get(pair)
        own = self._check_of("golden", self.golden, pair.golden) if is_main else None
        if check is not None and check.is_known:
            check = self._amplified(pair, check)
        is_settled = self._is_settled("target", self.target, pair.target) and self._is_settled(
            "golden", self.golden, pair.golden
        )
        return JudgedFacts(
            pair,
            measured,
            conditions,
            meaning=self._meaning(pair),
            check=check if update is None else update,
            golden_check=own if update is None else None,
            regions=tuple(
                self._region_of(side, run, key) if is_main else ""
                for side, run, key in (
                    ("target", self.target, pair.target),
                    ("golden", self.golden, pair.golden),
                )
            ),
            is_update=update is not None,
            is_settled=is_settled,
            leaf=self.starts.get(pair, ""),  # golden may start from what the target computes
            levels=self._levels(pair),
            is_code=pair in self.codes,
            unsettled=self._in_terms.get(pair, "") or self._unsettled(pair),
            parting=partings.get(pair, ""),
            call=self._in_call(pair),
            is_shown=self._is_shown(pair),
            is_parted=self._is_parted(pair),
            is_effect=is_effect(pair.key) or self._is_left(pair),
            fresh=self._is_fresh(pair),
            absence=absence,
            said=said,
            main=self.mains[pair],
            again=self.between.again.get(pair),
            is_passed_on=self._is_passed_on(pair),
            replicas=measured.laid.finding if measured.laid else "",
            by_rank=_on_ranks(measured.laid) if measured.laid else "",
            is_by_rank=self._is_by_rank(pair, measured),
            holders=self._holders(pair),
            is_stated=any(run.side.states(key) for run, key in self._sides(pair)),
            shown_by=self._shown_sums.get(pair),
        )

    @cached_property
    def calls(self) -> dict[Site, CallDifference]:
        """In what calls that match differ, by golden's call."""
        return call_differences(self.pairs, self.golden.side.listing, self.target.side.listing)

    def _in_call(self, pair: Pair) -> str:
        """In what the calls differ that gave a value."""
        key = pair.golden
        if key is None or not key.slot.is_output:
            return ""
        return self.calls[key.site].said if key.site in self.calls else self._constant(key.site)

    def _constant(self, site: Site) -> str:
        """Which constant that a call takes, one that nothing was computed for, is another."""
        for pair in self._taken.get(site, ()):
            is_constant = self._is_made(pair) and not self.sources[pair] and not self._takes(pair)
            if is_constant and not self._is_equal(self.mains[pair]):
                return f"{pair.key.slot} is not the same constant"
        return ""

    @cached_property
    def _taken(self) -> dict[Site, list[Pair]]:
        found: dict[Site, list[Pair]] = {}
        for pair in self.pairs:
            if pair.golden is not None and pair.both and pair.golden.slot.is_input:
                found.setdefault(pair.golden.site, []).append(pair)
        return found

    def _takes(self, pair: Pair) -> bool:
        """Whether anything is given to the calls that made a value."""
        nodes = (run.producer(at) for run, key in self._sides(pair) for at in run.places(key))
        return any(node.takes for node in nodes if node is not None)

    # values on ranks

    @cached_property
    def _in_terms(self) -> dict[Pair, str]:
        """Results of which each rank gives out a term."""
        found = {pair: self.measured_of(pair) for pair in self.pairs}
        return terms_given(found, self.target.side.listing)

    @cached_property
    def _shown_sums(self) -> dict[Pair, Pair]:
        """Gradients that lie in terms, and what shows that these were added up."""
        return shown_sums(self.pairs, self.measured, self.golden.side.listing)

    def _is_by_rank(self, pair: Pair, measured: Measured) -> bool:
        """Whether what each rank has is held against golden's for it: one lap of a loop, or all."""
        is_lap = pair.golden is not None and self.golden.side.shares(pair.golden).is_in_laps
        return is_lap or (measured.laid is not None and measured.laid.is_by_rank)

    def _holders(self, pair: Pair) -> str:
        """The ranks that have what the target alone has, where not all do."""
        listing = self.target.side.listing
        if pair.golden or pair.target is None or listing.num_ranks == 1:
            return ""
        ranks = {record.rank for record in listing.values[pair.target]}
        return ranks_named(ranks) if len(ranks) < listing.num_ranks else ""

    def _is_passed_on(self, pair: Pair) -> bool:
        """Whether both of its values were made, or given, where others stand for them."""
        return all(
            self._mains(run).get(place) is not self.mains[pair]
            for run, key in self._sides(pair)
            for place in run.places(key)
        )

    def _levels(self, pair: Pair) -> str:
        """What declared levels explain between the two values of a pair; nothing if they do not."""
        if pair.golden is None or pair.target is None:
            return ""
        places = zip(self.golden.places(pair.golden), self.target.places(pair.target), strict=False)
        found = {self._anchors.get(each, "") for each in places}
        return found.pop() if len(found) == 1 else ""

    def _unsettled(self, pair: Pair) -> str:
        """Why nobody knows if declared levels explain what an effect differs in."""
        places = self.target.places(pair.target) if pair.both and pair.target else ()
        found = (step.proof.unexplained.get(place, "") for place in places for step in self.steps)
        return next(filter(None, found), "")

    @cached_property
    def _anchors(self) -> dict[tuple[ValueId, ValueId], str]:
        found: dict[tuple[ValueId, ValueId], str] = {}
        for step in self.steps:
            found |= step.proof.levels
        for pair, said in self.rounded.items():
            if pair.golden is not None and pair.target is not None:
                ends = self.golden.places(pair.golden), self.target.places(pair.target)
                found |= dict.fromkeys(zip(*ends, strict=False), said)
        return found

    def _amplified(self, pair: Pair, check: Replay) -> Replay:
        apart = [
            metrics.rel_l2
            for each in self.sources[pair]
            if (metrics := self.measured_of(each).metrics) is not None and metrics.rel_l2 > 0
        ]
        if not apart or not check.inherited > 0:
            return check
        return check._replace(amplification=check.inherited / max(apart))

    def _is_shown(self, pair: Pair) -> bool:
        """Whether what depends on a value is shown to be the same on both sides.

        On one of them nothing may depend on it.
        """
        places = [
            (run is self.golden, place)
            for run, key in self._sides(pair)
            for place in run.places(key)
        ]
        shown = [place in self._shown[side] for side, place in places]
        unused = (place in self._unused[side] for side, place in places)
        return any(shown) and all(map(or_, shown, unused))

    def _is_parted(self, pair: Pair) -> bool:
        """Whether it is known where the programs of its step part."""
        steps = {step for run, key in self._sides(pair) for step in self._parted if step == (
            run is self.golden, key.model, key.step)}  # fmt: skip
        return bool(steps)

    @cached_property
    def _parted(self) -> set[tuple[bool, str, int]]:
        found = set()
        for step in () if self.lost else self.steps:
            if any(map(_tells_parting, step.proof.findings)) or step.proof.is_rounded:
                for is_golden, program in ((True, step.golden), (False, step.target)):
                    found.add((is_golden, program.model, program.step))
        return found

    @cached_property
    def _shown(self) -> dict[bool, set[ValueId]]:
        return {side: self._of_steps(lambda proof: proof.shown, side) for side in (True, False)}

    @cached_property
    def _unused(self) -> dict[bool, set[ValueId]]:
        return {side: self._of_steps(lambda proof: proof.unused, side) for side in (True, False)}

    def _of_steps(
        self, values: Callable[[Proof], Mapping[str, set[ValueId]]], is_golden: bool
    ) -> set[ValueId]:
        side = "golden" if is_golden else "target"
        return {value for step in self.steps for value in values(step.proof).get(side, ())}

    @cached_property
    def _left(self) -> dict[bool, set[ValueId]]:
        """What either run is known to leave behind."""
        found: dict[bool, set[ValueId]] = {}
        for run in (self.golden, self.target):
            shown = {effect.value for program in run.programs for effect in program.effects}
            found[run is self.golden] = shown.union(*map(written_outside, run.programs))
        return found

    def _is_left(self, pair: Pair) -> bool:
        return any(
            place in self._left[run is self.golden]
            for run, key in self._sides(pair)
            for place in run.places(key)
        )

    def _is_made(self, pair: Pair) -> bool:
        return any(
            run.producer(place) is not None
            for run, key in self._sides(pair)
            for place in run.places(key)
        )

    def _meaning(self, pair: Pair) -> Meaning:
        if pair.golden is None or pair.target is None:
            return Meaning.UNKNOWN
        if self._levels(pair):
            return Meaning.SAME
        one, other = self.golden.quantity(pair.golden), self.target.quantity(pair.target)
        if one is None or other is None:
            return Meaning.UNKNOWN
        return Meaning.SAME if one == other else Meaning.OTHER

    def _is_fresh(self, pair: Pair) -> bool:
        metrics = self.measured_of(pair).metrics
        if metrics is not None and metrics.equal:
            return False
        made = pair.key.slot.is_output and gives_memory(pair.key.op)
        return made or pair.unwritten is Unwritten.WHOLLY

    def _absence(self, pair: Pair, asked: tuple[Asking, Asking], lost: str) -> tuple[Absence, str]:
        said = unasked(pair, *asked, self.counting.names)
        if said:
            return Absence.UNASKED, said
        slot = pair.key.slot
        if slot.is_generator:
            return Absence.GENERATOR, ""
        if slot.is_weight:
            return Absence.WEIGHT, ""
        if lost:
            return Absence.LOST, lost
        run = self.golden if pair.golden else self.target
        if slot.is_gradient and is_zero_everywhere(run.side, pair.key):
            return Absence.ZERO, ""
        return (Absence.FUSED, "") if pair.inside else (Absence.NONE, "")

    # where programs part

    def findings(self, answer: ProofAnswer) -> dict[Pair, str]:
        """What was found of start or program, where."""
        found: dict[Pair, str] = {}
        for step in () if self.lost else self.steps:
            for finding in step.proof.findings:
                pair = self._place_of(finding, step) if finding.answer is answer else None
                if pair is not None:
                    run = self.golden if finding.side == "golden" else self.target
                    is_many = run.side.facts.num_ranks > 1
                    where = f"on rank {finding.rank}: " if is_many else ""
                    found.setdefault(pair, f"{where}{_told_at(finding, pair)}")
        return found

    def _place_of(self, finding: ProofFinding, step: StepPrograms) -> Pair | None:
        program = step.golden if finding.side == "golden" else step.target
        here = [
            pair
            for pair in self.pairs
            for _, key in self._sides(pair)
            if (key is (pair.golden if finding.side == "golden" else pair.target))
            and (key.model, key.op, key.call) == (program.model, finding.op, finding.call)
            and key.step == program.step
        ]
        exact = [pair for pair in here if _slot(pair, finding) == finding.slot]
        given = [pair for pair in here if _is_given_out(pair, finding)]
        return next(iter([*exact, *given, *here]), None)


def _told_at(finding: ProofFinding, pair: Pair) -> str:
    """What was found, at golden's call if that is where it is told."""
    there = pair.golden is not None and finding.instead == (pair.golden.op, pair.golden.call)
    if there and pair.golden is not None and finding.op != pair.golden.op:
        return f"mine computes something else at {finding.op}#{finding.call}"
    return finding.reason


def _tells_parting(finding: ProofFinding) -> bool:
    """Whether it says where programs part, or what they were given otherwise when they did."""
    is_start = finding.answer is ProofAnswer.DIFFERENT_START and not finding.is_confirmed
    return is_start or finding.answer is ProofAnswer.DIFFERENT_PROGRAM


def _is_of(program: Program, node: Node) -> bool:
    return all(value in program.records for value in node.takes.values())


def _alone_on_rank(replay: Replay, own: Node | None, *, is_all: bool) -> Replay:
    """What is known of a gradient by its rank's own calls: others may have added to it."""
    if own is None or is_all or not replay.is_known or not wrong(replay):
        return replay
    return Replay(unknown="what the ranks made of this gradient together is not on record")


def _on_ranks(laid: LaidOut) -> str:
    """What a difference looks like, rank by rank; who has much more of it, or has the value."""
    if laid.remark:
        return laid.remark
    errors = laid.by_rank
    least = min((error for _, error in errors), default=0.0)
    worse = {rank: error for rank, error in errors if error > STANDS_OUT * least}
    if not 0 < len(worse) < len(errors):
        return laid.holders
    return f"wrong: {ranks_named(worse)} (rel_l2 {max(worse.values()):.2g})"


def _slot(pair: Pair, finding: ProofFinding) -> str:
    key = pair.golden if finding.side == "golden" else pair.target
    return str(key.slot) if key else ""


def _is_given_out(pair: Pair, finding: ProofFinding) -> bool:
    key = pair.golden if finding.side == "golden" else pair.target
    return key is not None and key.slot.is_output


def is_effect(key: Key) -> bool:
    """Whether a run leaves this value behind."""
    slot = key.slot
    if key.op == ROOT and (slot.is_output or (slot.is_gradient and slot.value.is_input)):
        return True
    return slot.is_parameter_gradient or key.op.is_effect


def _doubt(replay: Replay) -> tuple[bool, bool, float]:
    is_wrong = replay.is_known and bool(wrong(replay))
    return is_wrong, not replay.is_known, replay.introduced if replay.introduced > 0 else 0.0


def _records(run: RunValues, program: Program, node: Node) -> CallRecords:
    takes = {slot: program.records[value] for slot, value in node.takes.items()}
    gives = {slot: program.records[value] for slot, value in node.gives.items()}
    return CallRecords(run.side.archive.path, takes, gives)
