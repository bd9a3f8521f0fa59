"""Every reader of the package as a function of bytes, and a few inputs that each reads well."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

from dumpcmp.align.mapfile import read_mapping
from dumpcmp.align.mesh.declared import read_stated
from dumpcmp.archive.integrity import audit
from dumpcmp.archive.manifest import read_manifest
from dumpcmp.archive.read.reader import Archive
from dumpcmp.archive.read.scan import ring_records
from dumpcmp.archive.upload import upload
from dumpcmp.archive.write.ring import Ring
from dumpcmp.archive.write.writer import ArchiveWriter
from dumpcmp.comparing.matches import matches_in
from dumpcmp.dumping.modes import check_mode, parse_mode
from dumpcmp.execute import SerialExecutor
from dumpcmp.golden import unpacked_golden
from dumpcmp.importing import import_dump
from dumpcmp.importing.gathering import find, gather, opened
from dumpcmp.logprobs import compare_logprobs
from dumpcmp.measure.metrics import measure
from dumpcmp.nouns.errors import DumpcmpError
from dumpcmp.nouns.key import Op
from dumpcmp.nouns.layouts import parse_layout
from dumpcmp.nouns.record import Call
from dumpcmp.nouns.row_ids import RowIds
from dumpcmp.nouns.selection import make_tap
from dumpcmp.nouns.value import Value
from dumpcmp.partitioning.checkpoint import read_checkpoint
from dumpcmp.partitioning.exported import read_exported
from dumpcmp.pytorch.package_weights import weights_of
from dumpcmp.report.page import page_of
from dumpcmp.report.reading import read_json
from dumpcmp.summary.summary import summarise
from dumpcmp.taps.onnx.places import NodePlaces
from dumpcmp.taps.onnx.protobufs import attributes_of, graphs_of, read_model, tensors_of
from dumpcmp.taps.onnx.tensors import from_proto
from dumpcmp.weights.checkpoint_files import opened_weights
from tests.archive.values import key, parts, put
from tests.importing.torchair_trees import Task, described, ge_bytes

CHECKPOINT = Path(__file__).parents[1] / "partitioning" / "data" / "nnscaler_linear_relu.ckp"
MAPPING = b"""\
'layers.*.attn.{q,k,v}': 'blocks.*.attn.qkv'
layers.*.mlp: {to: blocks.*.ffn, axis: -1, groups: 2}
'norm#0/output.0': 'add_norm#0/output.1'
x: &a {to: y, order: [1, 0]}
z: *a
"""
LAYOUT = b"""\
mesh: dp=2 tp=2
layers.*.qkv: b s h[tp]
golden:
  lm_head: {output.0: "v[tp] h", input: b s h}
"""
MSPROBE = {
    "data": {
        "Module.a.Linear.forward.0": {
            "input_args": [{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3],
                            "Max": 1.0, "data_name": "Module.a.Linear.forward.0.input.0.pt"}],
            "output": [{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2]}],
        }
    }
}  # fmt: skip

X = np.arange(6, dtype="f4").reshape(2, 3)
GE, TEXT = "Add.Add_2.0.6.1706596911878000", "dynamo_original_graph_1_rank_0_pid_7_ts_1706.txt"
FX = "add_1-aten.add.Tensor.OUTPUT.0.20240125031118787000.npy"
SGLANG = "step=0___rank=1___dump_index=12___name=attn_out.pt"
FACTS = {
    "version": 1,
    "asked": {"mode": "eager", "seed": 0, "dtype": None, "filters": {"tokens": [[0, 3]],
              "layers": ["a.*"], "io": "all", "backward": False, "level": "functions"}},
    "facts": {"versions.torch": "2.13"},
}  # fmt: skip
ROWS = b"""\
op,call,slot,token,paired_by,verdict,golden_shape,my_op,reason
a,0,output.0,0,key,PASS,"[2, 3]",,
"b,c",1,input.0,0,,UNPAIRED,,,"no ""match"\"\"
"""

SCORED = b"""\
{"step": 0, "index": 1, "tokens": [5, 6, 7, 8], "response_length": 2, "log_probs": [-1.5, -0.25]}
{"idx": 2, "token_ids": [5, 6, 7, 0], "input_lengths": 3, "token_loss_mask": [0, 1, 1, 0],
"""[:-1].replace(b"1, 0],", b'1, 0], "generation_logprobs": [0.0, -1.0, -2.0, 0.0]}')
SCORED_BATCH = b'{"token_ids": [[1, 2], [3, 4]], "logprobs": [[0.0, -1.0], [null, -2.0]]}\n'
ENTRIES = b"""{"rank": 0, "logprob_entries": [[
{"global_position": 0, "token_id": 7, "logprob": -0.5, "is_valid": true},
{"global_position": 1, "token_id": 8, "logprob": -1.5, "is_valid": false}]]}"""
ANSWERS = (
    b"""\
{"choices": [{"index": 0, "prompt_token_ids": [3, 4], "prompt_logprobs": [null, {"4": -1.0}],
"""[:-1]
    + b' "logprobs": {"tokens": ["a", "token_id:9"], "token_logprobs": [-0.1, -0.2]}}]}\n'
)
CHAT = (
    b"""\
{"custom_id": "7", "response": {"body": {"choices": [{"logprobs": {"content": [
"""[:-1]
    + b'{"token": "a", "logprob": -0.5}]}}]}}}\n'
)
WEIGHT_MAP = b'{"metadata": {}, "weight_map": {"a": "model.safetensors"}}'
ROW_IDS = b'{"shape":[2,3],"runs":[["a",0,3],[null,0,1],["b",4,2]],"source":"positions"}'
ROW_OP = Op("<effects>/rows")

Read = Callable[[bytes], object]


class Targets:
    """The readers, each with a room of its own below `room`."""

    def __init__(self, room: Path) -> None:
        self.room = room
        room.mkdir(parents=True, exist_ok=True)
        self.whole = _archive(room / "whole")
        self._part = parts(self.whole)[0]
        self.rank = self._part.parents[2]

    @cached_property
    def all(self) -> dict[str, tuple[Read, list[bytes]]]:
        """Reader and inputs, by name."""
        run, manifest = self.rank / "run.json", self.rank / "manifest.json"
        return {
            "parts": (self._in_archive(self._part), [self._part.read_bytes(), self._unsealed()]),
            "numbers": (self._numbers(self._part), [self._part.read_bytes()]),
            "runs": (self._in_archive(run), [run.read_bytes()]),
            "manifests": (self._in_archive(manifest), [manifest.read_bytes()]),
            "manifest lines": (self._manifest, [manifest.read_bytes()]),
            "rings": (self._ring, [self._ring_bytes()]),
            "npy": (self._foreign("a.npy"), [_npy(np.arange(6.0)), _npy(np.ones((2, 3), "F"))]),
            "npz": (self._foreign("a.npz"), [_npz(np.savez), _npz(np.savez_compressed)]),
            "safetensors": (self._foreign("a.safetensors"), [_safetensors()]),
            "torch": (self._foreign("a.pt"), [_torch(True), _torch(False)]),
            "msprobe": (self._msprobe, [json.dumps(MSPROBE).encode()]),
            "mappings": (self._mapping, [MAPPING]),
            "layouts": (self._layouts, [LAYOUT]),
            "layout texts": (self._layout_text, [b"b s h[tp]", b"s[cp:zigzag] h @ tp:1/2"]),
            "packages": (self._package, []),  # of what takes long to write, the corpus has one
            "checkpoints": (self._checkpoint, [CHECKPOINT.read_bytes()]),
            "fixtures": (self._fixture, [_fixture("w"), _fixture("w:xz")]),
            "fixture facts": (self._fixture_facts, [json.dumps(FACTS).encode()]),
            "reports": (self._report, []),
            "rows": (self._rows, [ROWS]),
            "journals": (self._uploaded, [b'["Model/0/part-0000.h5", 5, 1, "a"]\n']),
            "ge tasks": (self._tree(GE), [ge_bytes([X], [X]), ge_bytes([], [X, X], format=3)]),
            "ge texts": (self._tree(TEXT, {GE: ge_bytes([X], [X])}), [_text()]),
            "ge numbers": (self._tree(f"{GE}_min_max.npz"), [_numbers()]),
            "fx": (self._tree(FX), [_npy(X), _npy(np.array("sum"))]),
            "sglang": (self._tree(SGLANG), [_torch(True)]),
            "onnx": (self._onnx, []),
            "log probabilities": (self._logprobs("a.jsonl"), [SCORED, SCORED_BATCH]),
            "entries of ranks": (self._logprobs("rank_0.json"), [ENTRIES]),
            "answers": (self._logprobs("b.jsonl"), [ANSWERS, CHAT]),
            "weight indexes": (self._weight_index, [WEIGHT_MAP]),
            "row ids": (self._row_ids, [ROW_IDS]),
            "package weights": (self._package_weights, [_weights_package()]),
        }

    def _in_archive(self, place: Path) -> Read:
        """Read an archive in which `place` has other bytes: all values, and an audit."""
        path = self.room / f"of-{place.name}"
        shutil.copytree(self.whole, path)
        changed = path / place.relative_to(self.whole)

        def read(content: bytes) -> None:
            changed.write_bytes(content)
            with suppress(DumpcmpError):
                archive = Archive(path)
                for record in archive.values():
                    with suppress(DumpcmpError):
                        archive.load(record)
                _ = archive.calls, archive.problems, repr(archive)
            with suppress(DumpcmpError):
                audit(path)

        return read

    def _numbers(self, place: Path) -> Read:
        """What the native parts make of the values of a part that has other bytes."""
        path = self.room / "numbers"
        shutil.copytree(self.whole, path)
        changed = path / place.relative_to(self.whole)

        def read(content: bytes) -> None:
            changed.write_bytes(content)
            with suppress(DumpcmpError):
                archive = Archive(path)
                for record in archive.values():
                    with suppress(DumpcmpError):
                        value = archive.load(record)
                        assert measure(value, value).equal
                        measure(value, Value(value.dtype, np.roll(value.bits, 1)))
                        summarise(value)

        return read

    def _unsealed(self) -> bytes:
        sink = ArchiveWriter(self.room / "unsealed")
        put(sink, key("a"), np.arange(5.0))
        sink.settle()
        content = parts(self.room / "unsealed")[0].read_bytes()
        sink.close()
        return content

    def _manifest(self, content: bytes) -> None:
        room = self.room / "manifest"
        room.mkdir(exist_ok=True)
        (room / "manifest.json").write_bytes(content)
        with suppress(DumpcmpError):
            read_manifest(room, {"complete": True, "manifest": "0"})

    def _onnx(self, content: bytes) -> None:
        """All that is read of a model before ONNX Runtime is given it."""
        pytest.importorskip("onnx")
        place = self.room / "model.onnx"
        place.write_bytes(content)
        with suppress(DumpcmpError):
            model = read_model(place)
            NodePlaces.of(model)
            for graph, _ in graphs_of(model):
                for node in graph.node:
                    with suppress(DumpcmpError):
                        attributes_of(node)
                for tensor in tensors_of(graph):
                    with suppress(DumpcmpError):
                        from_proto(tensor, self.room)

    def _ring_bytes(self) -> bytes:
        ring = Ring(1 << 16, self.room / "ring")
        content = (self.room / "ring").read_bytes()
        ring.close()
        (self.room / "ring").unlink(missing_ok=True)
        return content

    def _ring(self, content: bytes) -> None:
        place = self.room / "ring"
        place.write_bytes(content)
        with suppress(DumpcmpError):
            for found in ring_records(place):
                found.listed()

    def _foreign(self, name: str) -> Read:
        """Read a file of another tool: what it has, and the elements of that."""
        room = self.room / f"foreign-{name}"
        room.mkdir(exist_ok=True)

        def read(content: bytes) -> None:
            (room / name).write_bytes(content)
            with suppress(DumpcmpError):
                titled = gather(find(room / name, "auto"), None, SerialExecutor())
                with opened(room / name, "auto") as file:
                    for value, _ in titled:
                        if value.nbytes <= 1 << 20 and not value.problem:
                            file.source(value).copy_into(memoryview(bytearray(value.nbytes)))

        return read

    def _msprobe(self, content: bytes) -> None:
        room = self.room / "msprobe" / "step0" / "rank0"
        room.mkdir(parents=True, exist_ok=True)
        (room / "dump.json").write_bytes(content)
        with suppress(DumpcmpError):
            import_dump(room.parents[1], self.room / "out", format="msprobe", overwrite=True)

    def _logprobs(self, name: str) -> Read:
        """Compare a file of log probabilities with itself, and print the report."""
        path = self.room / name

        def read(content: bytes) -> None:
            path.write_bytes(content)
            with suppress(DumpcmpError), np.errstate(all="ignore"):
                report = compare_logprobs(path, path)
                assert report.text() and report.exit_code in (0, 1, 2)

        return read

    def _weight_index(self, content: bytes) -> None:
        room = self.room / "checkpoint"
        room.mkdir(exist_ok=True)
        (room / "model.safetensors").write_bytes(_safetensors())
        (room / "model.safetensors.index.json").write_bytes(content)
        with suppress(DumpcmpError), opened_weights(room) as found:
            assert found.weights

    def _row_ids(self, content: bytes) -> None:
        text = content.decode(errors="replace")
        with suppress(DumpcmpError):
            found = RowIds.read(Call("M", 0, ROW_OP, 0, 0, arguments=text))
            assert sum(1 for _ in zip(found, range(100), strict=False)) <= len(found)

    def _mapping(self, content: bytes) -> None:
        place = self.room / "names.yaml"
        place.write_bytes(content)
        with suppress(DumpcmpError):
            found = read_mapping(place)
            for op in ("layers.3.attn.q", "layers.3.mlp/linear", "x" * 100, ""):
                found.renamed(op)

    def _layouts(self, content: bytes) -> None:
        place = self.room / "layouts.yaml"
        place.write_bytes(content)
        with suppress(DumpcmpError):
            read_stated([str(place)])

    def _layout_text(self, content: bytes) -> None:
        text = content.decode(errors="replace")
        with suppress(DumpcmpError):
            str(parse_layout(text))
        with suppress(DumpcmpError):
            read_stated([f"layers.*={text}"])

    def _package(self, content: bytes) -> None:
        (self.room / "a.pt2").write_bytes(content)
        with pytest.MonkeyPatch.context() as patch, suppress(DumpcmpError):
            patch.setattr(torch.export, "load", _not_loaded)  # it takes a second, and is torch's
            read_exported(self.room / "a.pt2")

    def _package_weights(self, content: bytes) -> None:
        place = self.room / "weights.pt2"
        place.write_bytes(content)
        with suppress(DumpcmpError):
            for tensor in weights_of(place, defaultdict(lambda: torch.float32)).values():
                tensor.sum()

    def _checkpoint(self, content: bytes) -> None:
        (self.room / "graph.ckp").write_bytes(content)
        with suppress(DumpcmpError):
            read_checkpoint(self.room / "graph.ckp")

    def _fixture(self, content: bytes) -> None:
        (self.room / "golden.tar").write_bytes(content)
        with suppress(DumpcmpError), unpacked_golden(self.room / "golden.tar") as (_, path):
            list(Archive(path))

    def _fixture_facts(self, content: bytes) -> None:
        """What `golden check` takes of a fixture: how a program is to be dumped."""
        place = self.room / "facts.tar"
        with tarfile.open(place, "w") as tar:
            _add(tar, "golden.json", content)
        with suppress(DumpcmpError), unpacked_golden(place) as (told, _):
            options = dict(told.options)
            mode, dtype = parse_mode(options.pop("mode")), options.pop("dtype")
            del options["seed"]
            check_mode(mode, make_tap(**options), dtype)

    def _tree(self, name: str, beside: Mapping[str, bytes] = MappingProxyType({})) -> Read:
        """Read a file of a tree that other tools write, whose names tell what is in them."""
        room = self.room / f"tree-{len(list(self.room.iterdir()))}"
        for other, content in beside.items():
            (room / other).parent.mkdir(parents=True, exist_ok=True)
            (room / other).write_bytes(content)
        (room / name).parent.mkdir(parents=True, exist_ok=True)

        def read(content: bytes) -> None:
            (room / name).write_bytes(content)
            with suppress(DumpcmpError):
                import_dump(room, self.room / "out", overwrite=True)

        return read

    def _rows(self, content: bytes) -> None:
        (self.room / "compare.csv").write_bytes(content)
        with suppress(DumpcmpError):
            matches_in(self.room / "compare.csv")

    def _uploaded(self, content: bytes) -> None:
        """An upload that goes on where an earlier one stopped, as its journal says."""
        room = self.room / "upload"
        if not room.exists():
            shutil.copytree(self.whole, room)
            upload(room, f"memory://{self.room.name}/up")
        (next(room.glob("*/run.json")).parent / ".uploaded").write_bytes(content)
        with suppress(DumpcmpError):
            upload(room, f"memory://{self.room.name}/up")

    def _report(self, content: bytes) -> None:
        (self.room / "compare.json").write_bytes(content)
        with suppress(DumpcmpError):
            told = read_json(self.room / "compare.json")
            with suppress(KeyError, TypeError, ValueError, AttributeError):  # as write_page does
                page_of(told, told["rows"])


def _not_loaded(_: object) -> None:
    raise ValueError("it is clean, and that is all that is asked here")


def _archive(path: Path) -> Path:
    with ArchiveWriter(path) as sink:
        for number, bits in enumerate((np.arange(6.0), np.ones((2, 2), "f4"), np.arange(3))):
            put(sink, key(f"op{number}"), bits, number)
    return path


def _npy(array: Any) -> bytes:
    room = io.BytesIO()
    np.save(room, array)
    return room.getvalue()


def _npz(save: Callable[..., None]) -> bytes:
    room = io.BytesIO()
    save(room, a=np.arange(20.0), b=np.ones(3, ">i4"))
    return room.getvalue()


def _safetensors() -> bytes:
    tensors = {"layers.0": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4).bfloat16()}
    safetensors = pytest.importorskip("safetensors.torch")
    return bytes(safetensors.save(tensors, {"format": "pt"}))


def _torch(is_zip: bool) -> bytes:
    room = io.BytesIO()
    tree = {"a": torch.arange(6.0).reshape(2, 3).T, "b": [torch.ones(2).bfloat16(), 3, "word"]}
    torch.save(tree, room, _use_new_zipfile_serialization=is_zip)
    return room.getvalue()


def _text() -> bytes:
    return described(Task("add_1", "aten.add.Tensor", "Add", "Add_2", (), ())).encode()


def _numbers() -> bytes:
    room = io.BytesIO()
    np.savez(room, inputs=np.ones((2, 2)), outputs=np.zeros((1, 2)))
    return room.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))


def _fixture(mode: Any) -> bytes:
    room = io.BytesIO()
    told = json.dumps({"version": 1, "asked": {}, "facts": {}}).encode()
    with tarfile.open(fileobj=room, mode=mode) as tar:
        for name, content in (("golden.json", told), ("run/a/b.txt", b"x")):
            _add(tar, name, content)
    return room.getvalue()


def _weights_package() -> bytes:
    """The weights of a program of torch.export, as it writes them."""
    sizes = [{"as_int": 2}, {"as_int": 3}]
    strides, offset = [{"as_int": 3}, {"as_int": 1}], {"as_int": 0}
    meta = {"sizes": sizes, "strides": strides, "storage_offset": offset, "dtype": 7}
    weight = {"path_name": "weight_0", "use_pickle": False, "tensor_meta": meta}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as package:
        package.writestr("m/data/weights/weight_0", bytes(24))
        for kind, held in (("weights/model_weights", {"w": weight}),
                           ("constants/model_constants", {})):  # fmt: skip
            package.writestr(f"m/data/{kind}_config.json", json.dumps({"config": held}))
    return buffer.getvalue()
