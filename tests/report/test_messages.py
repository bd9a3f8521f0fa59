"""The docs list every error that the code raises."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_docs_list_every_message() -> None:
    script = runpy.run_path(str(DOCS / "build_messages.py"))
    page = (DOCS / "messages.md").read_text()
    missing = [message.text for message in script["messages"]() if message.text not in page]
    assert not missing, "run: python docs/build_messages.py"
