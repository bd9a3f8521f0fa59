"""What a benchmark gives: a titled table, printed as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

# Table -> module of this package; each module has a function `table() -> Table`.
TABLES: dict[str, str] = {
    "unshard": "unshard",
    "capture": "capture",
    "capture-thread": "capture_thread",
    "archive": "archive",
    "faults": "faults",
    "faults-sampled": "sampled_faults",
    "truth": "truth.table",
    "truth-quick": "truth.quick",
    "truth-compacted": "truth.summaries",
    "truth-compiled": "truth.compiling",
    "truth-gpu": "truth.gpu",
    "truth-cost": "truth.cost",
    "truth-held-out": "truth.held_out",
    "unseen": "unseen",
    "op-samples": "op_samples",
    "check": "check_cost",
    "rounding": "rounding",
    "compare": "compare",
    "command": "whole_command",
    "open": "opening",
    "pairing": "pairing",
    "ports": "ports",
    "proof": "proof",
    "quantised": "quantised",
    "reliability": "reliability",
    "repros": "repros",
    "several-faults": "several_faults",
    "grafted-layers": "grafted_layers",
    "chunks": "chunks",
    "compiled": "compiled",
    "compiled-cost": "compiled_cost",
    "compiled-faults": "compiled_faults",
    "compiled-gpu": "compiled_gpu",
    "certified": "certified",
    "undisturbed": "undisturbed",
    "publicbugs": "publicbugs.table",
    "traps": "traps",
    "verify": "verify",
    "weights": "weights",
    "logprobs": "logprobs",
    "invariance": "invariance",
    "seeds": "seeds",
    "sound": "sound",
    "partition": "partition",
    "partitioned": "partitioned.table",
    "partitioned-held-out": "partitioned.held_out",
    "partitioned-device": "partitioned.one_device",
    "partitioned-many": "partitioned.many",
    "graphs": "graphs",
    "sketch": "sketch_accuracy",
    "sketch-faults": "sketch_faults",
    "compact-size": "compact_size",
    "compact-speed": "compact_speed",
    "compacted-faults": "compacted_faults",
    "hypotheses": "hypotheses",
    "onnx": "exported.table",
    "onnx-exporter-bugs": "exported.exporter_bugs",
    "onnx-quantised": "exported.quantised_exports",
    "exported-targets": "exported.other_targets",
    "onnx-held-out": "exported.held_out",
    "pages": "pages",
    "scale": "scale",
    "scale-workers": "scale_workers",
    "summary-gpu": "summary_gpu",
    "capture-gpu": "capture_gpu",
    "llama-gpu": "llama_gpu",
}


@dataclass(frozen=True)
class Table:
    """Rows of text under headings, with a line that says how they were measured."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    how: str = ""

    def to_markdown(self) -> str:
        lines = [f"### {self.title}", ""]
        if self.how:
            lines += [self.how, ""]
        lines.append("| " + " | ".join(self.headings) + " |")
        lines.append("|" + "---|" * len(self.headings))
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join(lines) + "\n"
