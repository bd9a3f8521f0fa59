"""A file is replaced whole or not at all."""

from pathlib import Path

import pytest

from dumpcmp.nouns.files import replacing, write_whole


def test_a_draft_takes_the_place_of_the_file_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.csv"
    write_whole(path, "old \ud800")
    with pytest.raises(ZeroDivisionError), replacing(path) as draft:
        draft.write_text("half")
        assert draft.suffix == ".csv" and path.read_bytes() == b"old \xed\xa0\x80"
        1 / 0  # noqa: B018
    assert [file.name for file in tmp_path.iterdir()] == ["report.csv"]
    assert path.read_bytes() == b"old \xed\xa0\x80"
    write_whole(path, "new")
    assert path.read_text() == "new" and len(list(tmp_path.iterdir())) == 1
