"""The tools for assistants, asked by the client of the SDK."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dumpcmp import mcp_server
from dumpcmp.nouns.errors import DumpcmpError

SAMPLES = Path(__file__).parents[2] / "sample_dumps"
GOLDEN, MINE = str(SAMPLES / "golden"), str(SAMPLES / "target")


def test_without_the_sdk_it_says_what_to_install() -> None:
    try:
        import mcp.server  # noqa: F401
    except ImportError:
        with pytest.raises(DumpcmpError, match="needs the SDK") as caught:
            mcp_server.server()
        assert "dumpcmp[mcp]" in caught.value.hint


def test_a_value_is_told_with_its_extremes_or_what_is_not_there() -> None:
    told = mcp_server.tensor(GOLDEN, "layers.1.attn.o_proj/linear", token=1)
    assert "float32 [1, 1, 32]" in told and " .. " in told and "[[[" in told
    with pytest.raises(DumpcmpError, match="has no op"):
        mcp_server.tensor(GOLDEN, "layers.9")


def test_the_answer_of_a_command_says_what_its_exit_code_means() -> None:
    told = mcp_server.compare(MINE, GOLDEN, layers="layers.1.attn*", tokens="0")
    first, second, *_ = told.splitlines()
    assert first == "exit code 1: different" and second.startswith("WRONG at layers.1.attn.o_proj")


def test_a_path_is_no_option() -> None:
    told = mcp_server.show("--help")
    assert told.startswith("exit code 2: trouble") and "--help" in told and "Usage" not in told


def test_a_module_that_lies_beside_the_dumps_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("dumpcmp", "numpy", "click", "json"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'evil')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    told = mcp_server.show(GOLDEN, "layers.0.mlp/mul")
    assert told.startswith("exit code 0") and not (tmp_path / "evil").exists()


def test_the_client_of_the_sdk_finds_and_calls_the_tools() -> None:
    anyio, sdk = pytest.importorskip("anyio"), pytest.importorskip("mcp")

    async def asked() -> tuple[set[str], list[str]]:
        async with sdk.Client(mcp_server.server()) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            calls: list[tuple[str, dict[str, Any]]] = [
                ("show", {"path": GOLDEN, "key": "layers.0.mlp/mul"}),
                ("tensor", {"path": GOLDEN, "op": "nowhere"}),
            ]
            answers = [await client.call_tool(name, given) for name, given in calls]
            return names, [answer.content[0].text for answer in answers]

    names, (shown, missing) = anyio.run(asked)
    assert names == {"compare", "explain", "show", "tensor", "repro"}
    assert shown.startswith("exit code 0") and "layers.0.mlp" in shown
    assert missing.startswith("exit code 2: trouble") and "has no op 'nowhere'" in missing
