"""The script of a repro: plain code that needs torch and numpy only, from a template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from dumpcmp.reproducing.case import WIDE, ErrorMeasure, ReproCase, ReproCode
from dumpcmp.reproducing.parallel_case import ParallelCase
from dumpcmp.reproducing.parallel_region import RanksCode
from dumpcmp.reproducing.region import CodeRegion
from dumpcmp.reproducing.tensor_file import SAFE_NAMES

_LOAD = '''
def load(path):
    """The tensors of a .safetensors file, by name."""
    octets = path.read_bytes()
    start = 8 + int.from_bytes(octets[:8], "little")
    found = {}
    for name, told in json.loads(octets[8:start]).items():
        first, last = told["data_offsets"]
        flat = np.frombuffer(octets[start + first : start + last], np.uint8).copy()
        found[name] = torch.from_numpy(flat).view(DTYPES[told["dtype"]]).reshape(told["shape"])
    return found
'''

_LAID = '''
def laid(dense, stride):
    """`dense` as it lay in memory in the run."""
    room = torch.zeros(sum((n - 1) * s for n, s in zip(dense.shape, stride)) + 1, dtype=dense.dtype)
    own = dense
    for dim, step in enumerate(stride):
        own = own.narrow(dim, 0, 1) if step == 0 else own
    room.as_strided(own.shape, stride).copy_(own)
    return room.as_strided(dense.shape, stride)
'''

_TOGETHER = '''
def share(name):
    """This rank's value, or the one that all have."""
    return values.get(f"{{RANK}}.{{name}}", values.get(name))


def together(part):
    """The one value that all ranks have, of what each of them has."""
    parts = [None] * SIZE
    dist.all_gather_object(parts, part)
    return {join}
'''

_GROUPS = "GROUPS = {{ranks: dist.new_group(ranks) for ranks in {groups}}}"

_EXACT = '''
def error_of(got):
    """The number of elements that are others."""
    if got.shape != expected.shape:
        return float("inf")
    return int(((got != expected) & ~((got != got) & (expected != expected))).sum())
'''
_ROUNDED = '''
def error_of(got):
    """{what}."""
    got = got.to(expected.dtype)
    if got.shape != expected.shape or not torch.equal(got.isfinite(), expected.isfinite()):
        return float("inf")
    width = expected.shape[-1] if expected.ndim else 1
    off = torch.where(expected.isfinite(), got - expected, 0).reshape(-1, width)
    want = torch.where(expected.isfinite(), expected, 0).reshape(-1, width)
{formula}
'''
_FORMULAS = {
    ErrorMeasure.ROWS: (
        "How far the worst row is off, relative to it and the mean row",
        "    off, want = (torch.linalg.vector_norm(each, dim=1) for each in (off, want))\n"
        "    return float((off / (want + want.mean() + 1e-300)).max())",
    ),
    ErrorMeasure.ELEMENTS: (
        "How far the worst element is off, relative to it and the rms",
        "    rms = want.abs().square().mean().sqrt()\n"
        "    return float((off.abs() / (want.abs() + rms + 1e-300)).max())",
    ),
    ErrorMeasure.GAIN: (
        "How much larger or smaller it is on the whole",
        "    size = want.abs().square().sum() + 1e-300\n"
        "    return float(((off * want.conj()).sum() / size).abs())",
    ),
}
RIGHT_OPS = {  # ways to the right result, as code
    "mine(*inputs)": "the same code",
    "golden(*inputs)": "golden's code",
    f"mine(*{WIDE})": "the same code in float64",
    "mine(*[x.contiguous() for x in inputs])": "the same code on inputs without gaps",
    "golden(*whole)": "golden's code on the whole values",
    "together(golden(*whole))": "golden's code",
    "together(mine(*inputs))": "the same code",
    "expected": "the result in float64 itself",
}


def script_of(case: ReproCase) -> str:
    """The text of ``repro.py``."""
    if isinstance(case, ParallelCase):
        return parallel_script_of(case)
    is_strided = any(not value.is_contiguous() for value in case.values.values())
    names = list(case.values)
    body = _function("mine", case.mine, names)
    if case.golden is not None:
        body += _function("golden", case.golden, names)
    uses_operator = any("operator." in line for line in body)
    imports = ["json", *(["operator"] if uses_operator else []), "sys"]
    sections = [
        _docstring(case),
        "\n".join([*(f"import {name}" for name in imports), "from pathlib import Path"]),
        "import numpy as np\nimport torch",
        "\n".join([
            dtypes_line(case),
            *(['DEVICE = "cpu"'] if any("DEVICE" in line for line in body) else []),
            f"LIMIT = {_limit(case)}",
        ]),
        _LOAD,
        *([_LAID] if is_strided else []),
        *body,
        _error_text(case.measure),
        "\n".join(_ending(case)),
    ]  # fmt: skip
    return "\n\n".join(section.strip("\n") for section in sections) + "\n"


def dtypes_line(case: ReproCase) -> str:
    """The dtypes that the file of values names, as code."""
    dtypes = {SAFE_NAMES[v.dtype]: str(v.dtype) for v in stored_values(case).values()}
    text = ", ".join(f'"{name}": {dtype}' for name, dtype in sorted(dtypes.items()))
    return f"DTYPES = {{{text}}}"


def _docstring(case: ReproCase) -> str:
    return (
        f'"""{case.kind}: {_one_line(case.place)}.\n\n{_wrapped(case.reason)}.\n'
        'Fails as it stands; passes with --right, which puts the right op in place.\n"""'
    )


def parallel_script_of(case: ParallelCase) -> str:
    """The text of the script that torchrun starts on several ranks."""
    codes = {"mine": case.mine_on_ranks, "golden": case.golden_on_ranks}
    body, names = [], dict[str, dict[int, list[str]]]()
    for name, code in codes.items():
        if code is not None:
            body += _functions(name, code)
            names[name] = {rank: list(region.inputs) for rank, region in code.regions.items()}
    golden = case.golden if isinstance(case.golden, CodeRegion) else None
    if golden is not None:
        body += _function("golden", golden, list(golden.inputs))
        names["golden"] = {rank: list(golden.inputs) for rank in names["mine"]}
    groups = dict.fromkeys(g for code in codes.values() if code for g in code.groups)
    uses_operator = any("operator." in line for line in body)
    imports = ["json", *(["operator"] if uses_operator else []), "sys"]
    whole = [f"whole = {_shares(names['golden'])}"] if "golden" in names else []
    sections = [
        _docstring(case).replace("Fails", f"Run it by {case.command}.\nFails", 1),
        "\n".join([*(f"import {name}" for name in imports), "from pathlib import Path"]),
        "import numpy as np\nimport torch\nimport torch.distributed as dist",
        "\n".join([
            dtypes_line(case),
            *(['DEVICE = "cpu"'] if any("DEVICE" in line for line in body) else []),
            f"LIMIT = {_limit(case)}",
            'dist.init_process_group("gloo")',
            "RANK, SIZE = dist.get_rank(), dist.get_world_size()",
            *([_GROUPS.format(groups=list(groups))] if groups else []),
        ]),
        _LOAD,
        *body,
        _TOGETHER.format(join=case.join.code),
        _error_text(case.measure),
        "\n".join([
            'values = load(Path(__file__).with_name("values.safetensors"))',
            *(f"# {name}: {_one_line(key)}" for name, key in case.keys),
            f"inputs = {_shares(names['mine'])}",
            *whole,
            'expected = values["expected"]',
            f'got = {case.right} if "--right" in sys.argv else {case.wrong}',
            "dist.destroy_process_group()",
            *_assertion(case),
        ]),
    ]  # fmt: skip
    return "\n\n".join(section.strip("\n") for section in sections) + "\n"


def _functions(name: str, code: RanksCode) -> list[str]:
    """One function, or one for the ranks that run each of several."""
    texts = code.texts
    if len(texts) == 1:
        region = next(iter(code.regions.values()))
        return _function(name, region, list(region.inputs))
    made = []
    for ranks in texts.values():
        region = code.regions[ranks[0]]
        made += _function(f"{name}{ranks[0]}", region, list(region.inputs))
    of_rank = {rank: ranks[0] for ranks in texts.values() for rank in ranks}
    listed = ", ".join(f"{name}{of_rank[rank]}" for rank in sorted(of_rank))
    return [*made, f"{name} = [{listed}][RANK]"]


def _shares(names: Mapping[int, list[str]]) -> str:
    """The inputs of each rank, as code."""
    if len({tuple(each) for each in names.values()}) == 1:
        return f"[share(name) for name in {next(iter(names.values()))}]"
    return f"[share(name) for name in {[names[rank] for rank in sorted(names)]}[RANK]]"


def _ending(case: ReproCase) -> Iterator[str]:
    """What runs: either result, and the assertion."""
    yield 'values = load(Path(__file__).with_name("values.safetensors"))'
    yield f"inputs = [{', '.join(_input(name, value) for name, value in case.values.items())}]"
    yield 'expected = values["expected"]'
    yield 'if "--right" in sys.argv:'
    yield f"    got = {case.right}"
    yield "else:"
    yield f"    got = {case.wrong}"
    yield from _assertion(case)


def _assertion(case: ReproCase) -> Iterator[str]:
    yield "error = error_of(got)"
    yield 'print(f"error {error:.3g}, where rounding explains {LIMIT:.3g}")'
    yield f'assert error <= LIMIT, f"{_short(case)}: off by {{error:.3g}}"'


def stored_values(case: ReproCase) -> dict[str, Tensor]:
    """All that the file of values holds."""
    recorded = {} if case.recorded is None else {"recorded": case.recorded}
    return {**case.values, "expected": case.expected, **recorded}


def _limit(case: ReproCase) -> str:
    return "0" if case.measure is ErrorMeasure.EXACT else f"{case.limit:.3g}"


def _short(case: ReproCase) -> str:
    return _one_line(case.place.partition(",")[0]).replace("{", "{{").replace("}", "}}")


def _one_line(text: str) -> str:
    """Text that may stand in a docstring or a string, whatever an archive has in it."""
    plain = " ".join(text.split()).replace("\\", "/").replace('"', "'")
    return "".join(c for c in plain if c.isprintable())


def _wrapped(text: str, width: int = 98) -> str:
    lines, line = [], ""
    for word in _one_line(text).split():
        if line and len(line) + len(word) + 1 > width:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return "\n".join([*lines, line])


def _function(name: str, code: ReproCode, takes: list[str]) -> list[str]:
    lines = (f"    {line}" for line in code.lines)
    return ["\n".join([f"def {name}({', '.join(takes)}):", *lines])]


def _input(name: str, value: Tensor) -> str:
    if value.is_contiguous():
        return f'values["{name}"]'
    return f'laid(values["{name}"], {tuple(value.stride())})'


def _error_text(measure: ErrorMeasure) -> str:
    if measure is ErrorMeasure.EXACT:
        return _EXACT
    what, formula = _FORMULAS[measure]
    return _ROUNDED.format(what=what, formula=formula)
