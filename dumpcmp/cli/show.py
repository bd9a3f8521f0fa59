"""``dumpcmp show``: what is in an archive."""

import math
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import click
from rich.text import Text
from rich.tree import Tree

from dumpcmp.archive.paths import own_text
from dumpcmp.archive.read.reader import Archive, excerpt, extremes, kernel_of, own_numbers
from dumpcmp.archive.stores.urls import is_url, place
from dumpcmp.cli.places import PLACE, with_cache
from dumpcmp.nouns.effects import Effect, shown_tree, tree_of
from dumpcmp.nouns.errors import ArchiveError, SelectionError
from dumpcmp.nouns.key import Key, Site
from dumpcmp.nouns.record import Call, Kept, Record
from dumpcmp.nouns.spoken import counted
from dumpcmp.nouns.value import Value
from dumpcmp.report.escaping import visible
from dumpcmp.report.terminal import Screen, plain

STAGES = {
    "original": "original", "aot": "aot", "passes": "pass", "final": "graph", "nodes": "nodes",
}  # fmt: skip


@click.command()
@click.argument("path", type=PLACE)
@click.argument("rest", metavar="[KEY-GLOB]", nargs=-1)
@click.option("--values", is_flag=True, help="Print some elements of each value.")
@click.option("--effects", is_flag=True,
              help="Print effects alone: results, exceptions, state, training.")  # fmt: skip
@click.option("--kernel", is_flag=True, help="Print the kernel that computes each op, if compiled.")
@click.option("--graph", type=click.Choice([*STAGES]),
              help="Print the graphs of a compiled run: as dynamo traced them, as AOTAutograd did, "
              "after each of Inductor's passes that changed them, as it lowered them, or each "
              "node's kernel and line.")  # fmt: skip
@click.option("--view", type=PLACE, metavar="FILE",
              help="Write an HDF5 file that shows every value, links too, as a dataset with "
              "attributes; elements stay where they are.")  # fmt: skip
@click.option("--pairs", is_flag=True,
              help="Print how calls found each other, and why others did not: of the archives "
              "GOLDEN MY, or of a report.")  # fmt: skip
@click.option("--mapping", type=PLACE,
              help="With --pairs of archives: a mapping, as for compare.")  # fmt: skip
@click.option("--token-offset", type=int, metavar="N",
              help="With --pairs of archives: add N to my tokens.")  # fmt: skip
@with_cache
def command(
    path: Path, rest: tuple[str, ...], values: bool, effects: bool, kernel: bool,
    graph: str | None, view: Path | None, pairs: bool,
    mapping: Path | None, token_offset: int | None,
) -> None:  # fmt: skip
    """Show what the archive at PATH holds: tokens, layers, ops, their shapes and extremes.

    KEY-GLOB selects by op (`layers.0.*`), by value (`*#0/output.0`) or with model and token
    before it (`TinyDecoder/0/layers.0.attn#0/*`). With --pairs: `show --pairs GOLDEN MY` or
    `show --pairs out/compare.csv`, and a glob over the names of ops.
    """
    if pairs:
        _show_pairs(path, rest, mapping, token_offset)
        return
    if len(rest) > 1 or mapping is not None or token_offset is not None:
        raise SelectionError(
            "two archives, --mapping and --token-offset go with --pairs",
            hint="dumpcmp show --pairs GOLDEN MY",
        )
    key_glob = rest[0] if rest else "*"
    archive = Archive(path)
    console = Screen(soft_wrap=True)
    told = _print_problems(console, archive)
    if view:
        from dumpcmp.archive.view import write_view

        if is_url(view) or is_url(path):
            raise SelectionError(
                "a view refers to files of this machine", hint="copy the archive, or write it here"
            )
        num_values = write_view(archive, view)
        click.echo(f"{visible(str(view))}: {counted(num_values, 'value')}")
        return
    if graph:
        _show_graphs(archive, graph)
        return
    if kernel:
        _show_kernels(archive, key_glob)
        return
    num_shown = 0
    for model in archive.models:
        for step in archive.steps(model):
            named = () if effects else archive.keys_of(model, step)
            keys = [key for key in named if _selects(key_glob, key)]
            left = list(_effects(archive, model, step, key_glob, effects))
            if keys or left:
                tree = _tree(archive, f"{model}, token {step}", keys, values)
                _add_effects(tree, archive, left, values)
                console.print(tree)
            num_shown += len(keys) + len(left)
    _print_problems(console, archive, told)  # which show once a step is read
    if not num_shown:
        _check_holds(archive)
        if effects and key_glob == "*":
            raise ArchiveError(
                f"no effects are recorded in {path}",
                hint="a version before effects wrote it, or --layer left them out: dump it again",
            )
        raise SelectionError(
            f"nothing in {path} is called {key_glob!r}", hint="quote the glob: 'layers.0.*'"
        )


def _print_problems(
    console: Screen, archive: Archive, told: frozenset[str] = frozenset()
) -> frozenset[str]:
    """Print what is wrong with `archive`, and was not `told` before; all that is told by now."""
    problems = archive.problems
    for problem in problems:
        if problem not in told:
            console.print(plain(f"incomplete: {problem}", "yellow"))
    return frozenset(problems)


def _check_holds(archive: Archive) -> None:
    """Refuse an archive without values, in which there is nothing to look for."""
    if not len(archive):
        raise ArchiveError(
            f"nothing is recorded in {archive.path}",
            hint="dump the program again: what it says at its end tells why nothing was recorded",
        )


def _show_pairs(
    path: Path, rest: tuple[str, ...], mapping: Path | None, token_offset: int | None
) -> None:
    """Print the calls of two archives, or the values of a report, each with its partner or why."""
    from dumpcmp.comparing.matches import matches_in, matches_of

    if path.is_dir() and rest:
        found = matches_of(path, place(rest[0]), mapping, token_offset)
        rest = rest[1:]
    elif path.is_dir():
        hint = "dumpcmp show --pairs GOLDEN MY"
        raise SelectionError("--pairs needs a second archive, or a report", hint=hint)
    else:
        found = matches_in(path)
    glob = rest[0] if rest else "*"
    console = Screen(soft_wrap=True)
    chosen = [one for one in found.found if _names(glob, one.golden, one.target)]
    if not found.found:
        raise ArchiveError("nothing is recorded on either side", hint="dump both programs again")
    if not chosen:
        raise SelectionError(f"no call is named {glob!r}", hint="quote the glob: 'layers.0.*'")
    for remark in found.remarks:
        console.print(plain(f"note: {remark}", "yellow"))
    for by, count in found.counts.items():
        console.print(plain(f"{counted(count, 'value')} paired by {by}"))
    for one in chosen:
        if one.both:
            console.print(plain(f"{one.golden}  =  {one.target}  by {one.by}"))
    for side, name in (("golden", "golden"), ("target", "my side")):
        alone = [one for one in chosen if getattr(one, side) and not one.both]
        console.print(plain(f"only {name}: {len(alone)}", "bold"))
        for one in alone:
            console.print(plain(f"  {getattr(one, side)}  {one.why}"))


def _names(glob: str, *names: str) -> bool:
    """Whether `glob` selects any of the names, which have a token before them."""
    ops = [name.partition(" ")[2].partition(" ")[2] for name in names if name]
    return any(fnmatchcase(op, glob) or fnmatchcase(op.partition("#")[0], glob) for op in ops)


def _show_kernels(archive: Archive, glob: str) -> None:
    """Print what computes each op that `glob` selects; what several steps share, once."""
    calls = [call for call in archive.calls.values() if fnmatchcase(call.op, glob)]
    for told in dict.fromkeys(kernel_of(archive, call) for call in calls):
        click.echo(visible(told, keep="\n\t") + "\n")
    if not calls:
        _check_holds(archive)
        raise SelectionError(f"no op in {archive.path} is called {glob!r}", hint="quote the glob")


def _show_graphs(archive: Archive, stage: str) -> None:
    """Print the texts of the run's graphs at `stage`, the lowest rank's."""
    texts = {
        (model, name): path
        for (rank, model, name), path in archive.texts.items()
        if rank == min(archive.ranks) and name.startswith(f"{STAGES[stage]}-")
    }
    for (model, name), path in texts.items():
        click.echo(visible(f"# {model}: {name}\n{own_text(path)}", keep="\n\t"))
    if not texts:
        raise SelectionError(
            f"{archive.path} has no {stage} graph", hint="dump with --mode compiled keeps them"
        )


def _selects(glob: str, key: Key) -> bool:
    value = f"{key.op}#{key.call}/{key.slot}"
    names = (key.op, value, f"{key.model}/{key.step}/{value}")
    return any(fnmatchcase(name, glob) for name in names)


def _tree(archive: Archive, title: str, keys: Iterable[Key], values: bool) -> Tree:
    """The ops of one token, functions below the module that called them, in execution order."""
    tree = Tree(plain(title, "bold"))
    nodes: dict[tuple[str, ...], Tree] = {(): tree}
    calls: dict[Site, Call] = {}
    for key in keys:
        calls = calls or archive.calls_at(key.model, key.step)
        call = calls.get(key.site)
        thread = f" in thread {call.thread}" if call and call.thread else ""
        node = _node(nodes, (*key.op.split("/"), f"#{key.call}{thread}"))
        for record in archive.shards(key):
            node.add(Text.assemble(*_line(archive, record, values)))
    return tree


def _effects(
    archive: Archive, model: str, step: int, glob: str, every: bool
) -> Iterator[tuple[int, Call]]:
    """The effects of one token that `glob` selects, with the ranks that have them.

    Unless `every` one is meant, results that are the root's outputs and nothing else are left out.
    """
    own = {key.site for key in archive.effect_values_at(model, step)}
    for rank, calls in archive.effects_at(model, step).items():
        for call in calls:
            is_told = call.site not in own and tree_of(call).is_all_tensors
            is_plain = call.op == Effect.RESULT.op and is_told
            if (every or not is_plain) and _selects(glob, call.site.key(call.op.function)):
                yield rank, call


def _add_effects(
    tree: Tree, archive: Archive, effects: Iterable[tuple[int, Call]], values: bool
) -> None:
    """Add what a step left behind: each effect in a line, and the tensors that it has."""
    node = None
    for rank, call in effects:
        node = node or tree.add(plain("<effects>", "bold"))
        told = f" rank {rank}" if len(archive.ranks) > 1 else ""
        own = node.add(Text.assemble(
            plain(f"{call.op.function}#{call.call}", "cyan"), plain(f"{told} {shown_tree(call)}")
        ))  # fmt: skip
        held = archive.effect_values_at(call.model, call.step)
        for key, records in held.items():
            for record in records if key.site == call.site else ():
                if record.rank == rank:
                    own.add(Text.assemble(*_line(archive, record, values)))


def _node(nodes: dict[tuple[str, ...], Tree], path: tuple[str, ...]) -> Tree:
    if path not in nodes:
        nodes[path] = _node(nodes, path[:-1]).add(plain(path[-1]))
    return nodes[path]


def _line(archive: Archive, record: Record, values: bool) -> Iterator[Text]:
    """One value in one line: slot, type, shape, and what its elements span."""
    yield plain(record.key.slot, "cyan")
    yield plain(f" {record.dtype} {list(record.shape)}")
    if len(archive.ranks) > 1:
        yield plain(f" rank {record.rank}")
    if record.layout:
        yield plain(f" {record.layout}")
    if record.same_as is not None:
        yield plain(f" = {record.same_as.op}#{record.same_as.call} {record.same_as.slot}", "dim")
    yield from _elements(archive, record, values)


def _elements(archive: Archive, record: Record, values: bool) -> Iterator[Text]:
    if record.kept is Kept.NOTHING:
        yield plain(f" not stored: {record.problem}", "yellow")
        return
    try:
        value = archive.load(record)
        yield plain(f"  {_summary(record, value) or extremes(value)}")
        if record.sample is not None:
            yield plain(f" ({record.sample})")
        own = own_numbers(archive, record).items()
        yield plain("".join(f"  {name} {number:.6g}" for name, number in own))
        if values:
            yield Text("\n" + excerpt(value))
    except ArchiveError as error:
        yield plain(f" {error.message}", "red")


def _summary(record: Record, value: Value) -> str:
    """The extremes of a value of which only a Summary is kept, by the names of its numbers."""
    if record.kept is not Kept.SUMMARY or record.stored is None or record.sample is not None:
        return ""
    names = str(dict(record.stored.attributes).get("fields", "")).split()
    numbers = dict(zip(names, value.numbers().reshape(-1).tolist(), strict=False))
    return f"{numbers.get('min', math.nan):.6g} .. {numbers.get('max', math.nan):.6g} (summary)"
