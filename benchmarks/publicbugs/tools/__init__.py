"""Adapters: each runs a golden and a target program through a tool and says what it answered."""

from benchmarks.publicbugs.tools.adapter import Tool
from benchmarks.publicbugs.tools.allclose import AllClose
from benchmarks.publicbugs.tools.debug_mode import HashedLogs
from benchmarks.publicbugs.tools.dump_and_compare import DumpAndCompare
from benchmarks.publicbugs.tools.minifier import Minifier
from benchmarks.publicbugs.tools.msprobe_dump import MsProbe

TOOLS: dict[str, Tool] = {
    tool.name: tool for tool in (DumpAndCompare(), AllClose(), Minifier(), HashedLogs(), MsProbe())
}
