"""dumpcmp finds the op where a compiled, partitioned or ported PyTorch model first goes wrong."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what mypy and editors know; at run time `__getattr__` brings each name
    from dumpcmp.archive.read.reader import Archive  # noqa: I001 - packed
    from dumpcmp.archive.integrity import audit
    from dumpcmp.archive.write.writer import ArchiveWriter
    from dumpcmp.checkup import Checkup, check
    from dumpcmp.compacting import compact
    from dumpcmp.comparing import Proposal, compare, propose_mapping
    from dumpcmp.dumping.capturing import capture, compiled_backend, fx_backend, save
    from dumpcmp.dumping.exported_runs import capture_exported
    from dumpcmp.dumping.onnx_runs import capture_onnx
    from dumpcmp.dumping.modes import Boundary, Compiled
    from dumpcmp.dumping.retention import Retention
    from dumpcmp.explaining import Explanation, explain
    from dumpcmp.golden import GoldenCheck, GoldenFile, check_golden, pack_golden
    from dumpcmp.grafting import GraftedRun, GraftReport, graft, graft_all
    from dumpcmp.importing import Imported, import_dump
    from dumpcmp.invariance import InvarianceReport, InvarianceRow, check_invariance
    from dumpcmp.judge import (
        AllCloseValueChecker, AutomaticValueChecker, Checker, Conditions, CosineChecker,
        ExactChecker, Fp64Checker, FullValueChecker, ReferenceChecker, RoundingChecker,
    )  # fmt: skip
    from dumpcmp.logprobs import LogprobCause, LogprobReport, LogprobSample, compare_logprobs
    from dumpcmp.nouns.errors import (
        AlignError, ArchiveError, CaptureError, CaptureWarning, CheckError, DumpcmpError,
        EngineError, LayoutError, MissingValueError, NotCallableError, ProgramFileError,
        SelectionError, VerificationError, VerificationWarning,
    )  # fmt: skip
    from dumpcmp.nouns.key import Key, Op, Slot
    from dumpcmp.nouns.outcome import Conclusion, Outcome, Tally
    from dumpcmp.nouns.record import Call, Record
    from dumpcmp.nouns.replay import Origin, Replay
    from dumpcmp.nouns.row import Judgement, Metrics, Row, Verdict, Why
    from dumpcmp.nouns.version import __version__
    from dumpcmp.partitioning.annotation import AnnotationError
    from dumpcmp.partitioning import (
        Findings, PartitionConfig, PartitionError, TensorInfo, check_partition_options,
        register_annotation, verify_graph, verify_partition_options,
    )  # fmt: skip
    from dumpcmp.replay.references import reference
    from dumpcmp.report.inline import Page, activations, page
    from dumpcmp.reproducing import Repro, repro
    from dumpcmp.summary.summary import Summary
    from dumpcmp.taps.distributed.ranks import layout, microbatch, set_rank
    from dumpcmp.taps.onnx.sessions import OnnxSettings
    from dumpcmp.taps.recording.padding import padded
    from dumpcmp.taps.recording.row_identity import requests
    from dumpcmp.weights import WeightReport, WeightRow, WeightVerdict, compare_weights
    from dumpcmp.verifying import (
        Report, VerifyConfig, run_and_compare, same, verify, verify_correctness, verifying_backend,
    )  # fmt: skip

__all__ = [
    "AlignError", "AllCloseValueChecker", "AnnotationError", "Archive", "ArchiveError",
    "ArchiveWriter", "AutomaticValueChecker", "Boundary", "Call", "CaptureError", "CaptureWarning",
    "CheckError", "Checker", "Checkup", "Compiled", "Conclusion", "Conditions", "CosineChecker",
    "DumpcmpError", "EngineError", "ExactChecker", "Explanation", "Findings", "Fp64Checker",
    "FullValueChecker", "GoldenCheck", "GoldenFile", "GraftReport", "GraftedRun", "Imported",
    "InvarianceReport", "InvarianceRow", "Judgement", "Key", "LayoutError", "LogprobCause",
    "LogprobReport", "LogprobSample", "Metrics", "MissingValueError", "NotCallableError",
    "OnnxSettings", "Op", "Origin", "Outcome", "Page", "PartitionConfig", "PartitionError",
    "ProgramFileError", "Proposal", "Record", "ReferenceChecker", "Replay", "Report", "Repro",
    "Retention", "RoundingChecker", "Row", "SelectionError", "Slot", "Summary", "Tally",
    "TensorInfo", "Verdict", "VerificationError", "VerificationWarning", "VerifyConfig",
    "WeightReport", "WeightRow", "WeightVerdict", "Why", "__version__", "activations", "audit",
    "capture", "capture_exported", "capture_onnx", "check", "check_golden", "check_invariance",
    "check_partition_options", "compact", "compare", "compare_logprobs", "compare_weights",
    "compiled_backend", "explain", "fx_backend", "graft", "graft_all", "import_dump", "layout",
    "microbatch", "pack_golden", "padded", "page", "propose_mapping", "reference",
    "register_annotation", "repro", "requests",
    "run_and_compare", "same", "save", "set_rank", "verify", "verify_correctness", "verify_graph",
    "verify_partition_options", "verifying_backend",
]  # fmt: skip

# Module -> the public names that it defines. Nothing is imported, torch least of all, until a
# name is used. tests/test_front_door.py holds this, `__all__` and the imports above together.
_HOMES = {
    "archive.read.reader": "Archive",
    "archive.integrity": "audit",
    "archive.write.writer": "ArchiveWriter",
    "checkup": "Checkup check",
    "compacting": "compact",
    "comparing": "Proposal compare propose_mapping",
    "dumping.capturing": "capture compiled_backend fx_backend save",
    "dumping.exported_runs": "capture_exported",
    "dumping.onnx_runs": "capture_onnx",
    "dumping.modes": "Boundary Compiled",
    "dumping.retention": "Retention",
    "explaining": "Explanation explain",
    "golden": "GoldenCheck GoldenFile check_golden pack_golden",
    "grafting": "GraftReport GraftedRun graft graft_all",
    "importing": "Imported import_dump",
    "invariance": "InvarianceReport InvarianceRow check_invariance",
    "judge": "AllCloseValueChecker AutomaticValueChecker Checker Conditions CosineChecker "
    "ExactChecker Fp64Checker FullValueChecker ReferenceChecker RoundingChecker",
    "logprobs": "LogprobCause LogprobReport LogprobSample compare_logprobs",
    "nouns.errors": "AlignError ArchiveError CaptureError CaptureWarning CheckError DumpcmpError "
    "EngineError LayoutError MissingValueError NotCallableError ProgramFileError SelectionError "
    "VerificationError "
    "VerificationWarning",
    "nouns.key": "Key Op Slot",
    "nouns.outcome": "Conclusion Outcome Tally",
    "nouns.record": "Call Record",
    "nouns.replay": "Origin Replay",
    "nouns.row": "Judgement Metrics Row Verdict Why",
    "nouns.version": "__version__",
    "partitioning": "Findings PartitionConfig PartitionError TensorInfo check_partition_options "
    "register_annotation verify_graph verify_partition_options",
    "partitioning.annotation": "AnnotationError",
    "replay.references": "reference",
    "report.inline": "Page activations page",
    "reproducing": "Repro repro",
    "summary.summary": "Summary",
    "taps.distributed.ranks": "layout microbatch set_rank",
    "taps.onnx.sessions": "OnnxSettings",
    "taps.recording.padding": "padded",
    "taps.recording.row_identity": "requests",
    "weights": "WeightReport WeightRow WeightVerdict compare_weights",
    "verifying": "Report VerifyConfig run_and_compare same verify verify_correctness "
    "verifying_backend",
}
_HOME_OF = {name: f"dumpcmp.{home}" for home, names in _HOMES.items() for name in names.split()}


if not TYPE_CHECKING:  # a name that is not there stays an error to mypy

    def __getattr__(name: str) -> Any:
        if name not in _HOME_OF:
            raise AttributeError(f"module 'dumpcmp' has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_HOME_OF[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted(__all__)
