"""Every link of README and docs leads somewhere: to a file, and to a heading in it."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "examples").glob("*.md"),
]
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


@cache
def prose(page: Path) -> str:
    return FENCED.sub("", page.read_text())


@cache
def anchors(page: Path) -> frozenset[str]:
    """The headings of a page as GitHub names them in addresses."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.append(f"{name}-{found.count(name)}" if name in found else name)
    return frozenset(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_to_a_heading_of_it(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, heading = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        file = (page.parent / path).resolve() if path else page
        known = anchors(file) if heading and file.suffix == ".md" and file.exists() else {heading}
        if not file.exists() or heading not in known:
            broken.append(link)
    assert broken == []
