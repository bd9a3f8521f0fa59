"""A capture records which request and position each row of a step is, however rows are laid out."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dumpcmp
from dumpcmp import demo
from dumpcmp.nouns.row_ids import RowIds, dim_of_rows

Rows = list[tuple[str, int] | None]


class Words(nn.Module):
    """A model with the arguments of Hugging Face and of engines."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 8)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        positions: Tensor | None = None,
        cache_position: Tensor | None = None,
        query_start_loc: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: Any = None,
    ) -> Tensor:
        if inputs_embeds is not None:
            return inputs_embeds * 2
        assert input_ids is not None
        found: Tensor = self.embed(input_ids)
        return found


def recorded(room: Path, *calls: dict[str, Any]) -> list[Rows]:
    """The rows of some calls, as the archive has them."""
    model = Words()
    with dumpcmp.capture(model, room / "d", layers=["<root>"]), torch.no_grad():
        for call in calls:
            names = call.pop("requests", None)
            with dumpcmp.requests(*names) if names else torch.no_grad():
                model(**call)
    archive = dumpcmp.Archive(room / "d")
    return [list(archive.rows_at("Words", step)[0]) for step in archive.steps("Words")]


def ids(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def row(name: str, *positions: int) -> Rows:
    return [(name, position) for position in positions]


MASK = torch.tensor([[1, 1, 1], [0, 1, 1]])
CACHE = ((torch.zeros(2, 1, 3, 4), torch.zeros(2, 1, 3, 4)),)
LAYOUTS: dict[str, tuple[list[dict[str, Any]], list[Rows]]] = {
    "a batch": ([{"input_ids": ids(2, 3)}], [row("0", 0, 1, 2) + row("1", 0, 1, 2)]),
    "embeddings": ([{"inputs_embeds": torch.ones(1, 3, 8)}], [row("0", 0, 1, 2)]),
    "padded left": ([{"input_ids": ids(2, 3), "attention_mask": MASK}],
                    [[*row("0", 0, 1, 2), None, *row("1", 0, 1)]]),
    "padded right": ([{"input_ids": ids(2, 3), "attention_mask": MASK.flip(1)}],
                     [[*row("0", 0, 1, 2), *row("1", 0, 1), None]]),
    "decoding with a mask": (
        [{"input_ids": ids(2, 3), "attention_mask": MASK},
         {"input_ids": ids(2, 1), "attention_mask": torch.cat([MASK, torch.ones(2, 1)], 1)}],
        [[*row("0", 0, 1, 2), None, *row("1", 0, 1)], row("0", 3) + row("1", 2)]),
    "decoding with a cache": (
        [{"input_ids": ids(2, 3)}, {"input_ids": ids(2, 1), "past_key_values": CACHE}],
        [row("0", 0, 1, 2) + row("1", 0, 1, 2), row("0", 3) + row("1", 3)]),
    "chunks": (
        [{"input_ids": ids(1, 2), "cache_position": torch.arange(2)},
         {"input_ids": ids(1, 2), "cache_position": torch.arange(2, 4)}],
        [row("0", 0, 1), row("0", 2, 3)]),
    "packed, positions": (
        [{"input_ids": ids(1, 5), "position_ids": torch.tensor([[0, 1, 2, 0, 1]])}],
        [row("0", 0, 1, 2) + row("1", 0, 1)]),
    "packed, bounds": (
        [{"input_ids": ids(5), "query_start_loc": torch.tensor([0, 3, 5]),
          "positions": torch.tensor([0, 1, 2, 7, 8])}],
        [row("0", 0, 1, 2) + row("1", 7, 8)]),
    "rows of an engine that are filled up": (
        [{"input_ids": ids(4), "query_start_loc": torch.tensor([0, 2]),
          "positions": torch.tensor([4, 5, 0, 0])}],
        [[*row("0", 4, 5), None, None]]),
    "named": (
        [{"input_ids": ids(2, 2), "requests": ("a", "b")}], [row("a", 0, 1) + row("b", 0, 1)]),
    "one after the other": (
        [{"input_ids": ids(1, 2)}, {"input_ids": ids(1, 1)}], [row("0", 0, 1), row("1", 0)]),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_row_has_its_request_and_position(name: str, tmp_path: Path) -> None:
    calls, expected = LAYOUTS[name]
    assert recorded(tmp_path, *(dict(call) for call in calls)) == expected


def test_generation_with_a_cache_has_the_rows_of_one_forward(tmp_path: Path) -> None:
    model, (prompt,) = demo.build()
    with dumpcmp.capture(model, tmp_path / "d", layers=["<root>"]):
        demo.generate(model, 3, prompt)
    archive = dumpcmp.Archive(tmp_path / "d")
    found = [each for step in archive.steps("TinyDecoder")
             for each in archive.rows_at("TinyDecoder", step)[0]]  # fmt: skip
    assert found == row("0", *range(prompt.shape[1] + 2))


def test_a_model_without_tokens_has_no_rows_and_a_comparison_sees_none(tmp_path: Path) -> None:
    plain = nn.Linear(4, 4)
    with dumpcmp.capture(plain, tmp_path / "d"):
        plain(torch.ones(2, 4))
    assert dumpcmp.Archive(tmp_path / "d").rows_at("Linear", 0) == {}
    model = Words()
    for name, names in (("one", ("a",)), ("other", ("b",))):
        with dumpcmp.capture(model, tmp_path / name), dumpcmp.requests(*names):
            model(ids(1, 3))
    outcome = dumpcmp.compare(tmp_path / "one", tmp_path / "other")
    assert outcome.conclusion == "SAME"
    assert not any("rows" in str(row.key.op) for row in outcome.rows)


def test_rows_are_written_in_runs_and_read_again() -> None:
    told: Rows = [*row("a", 5, 6, 7), None, None, *row("b", 0), *row("a", 8)]
    found = RowIds.of((7,), told, "positions")
    assert found.runs == (("a", 5, 3), (None, 0, 2), ("b", 0, 1), ("a", 8, 1))
    assert list(found) == told and len(found) == 7


@pytest.mark.parametrize(
    "shape, dims, expected",
    [((2, 3, 8), (2, 3), (0, 2)), ((6, 8), (2, 3), (0, 1)), ((8, 2, 3), (2, 3), (1, 2)),
     ((5, 8), (2, 3), None), ((4, 7, 8), (7,), (1, 1))],
)  # fmt: skip
def test_the_rows_of_a_value_lie_along_the_dims_of_that_size(
    shape: tuple[int, ...], dims: tuple[int, ...], expected: tuple[int, int] | None
) -> None:
    size = torch.Size(dims).numel()
    assert dim_of_rows(shape, RowIds(dims, (("a", 0, size),))) == expected


def test_a_damaged_record_of_rows_is_an_error_of_the_archive(tmp_path: Path) -> None:
    from dumpcmp.nouns.key import Op
    from dumpcmp.nouns.record import Call

    call = Call("M", 0, Op("<effects>/rows"), 0, 0, arguments='{"shape":[3],"runs":[["a",0,2]]}')
    with pytest.raises(dumpcmp.ArchiveError, match="do not make up the shape"):
        RowIds.read(call)
    with pytest.raises(dumpcmp.SelectionError, match="2 requests have 1 lengths"):
        dumpcmp.requests("a", "b", lengths=[1]).__enter__()
