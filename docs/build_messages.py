"""Writes docs/messages.md: every error that dumpcmp raises, read from the code that raises it.

Run it in the root of the repository: ``python docs/build_messages.py``.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "messages.md"

HEAD = """# Messages

Every error of dumpcmp says what is wrong and where, and below it what to do next. On the command
line it ends with exit code 2; in Python it is raised. All are subclasses of
`dumpcmp.DumpcmpError`, with the two parts in `message` and `hint`. Words in `‹ ›` stand for
names and numbers of your run.

This page is written by `python docs/build_messages.py` from the code; a test holds it to it.
"""


@dataclass(frozen=True)
class Message:
    """One place that raises: the error, what it says, and what it advises."""

    error: str
    text: str
    hint: str


def error_classes() -> dict[str, str]:
    """The errors and what each stands for."""
    tree = ast.parse((ROOT / "dumpcmp" / "nouns" / "errors.py").read_text())
    return {
        node.name: ast.get_docstring(node) or ""
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name.endswith("Error")
    }


def messages() -> list[Message]:
    """Every message, in the order of files and lines."""
    known = error_classes()
    found: dict[Message, None] = {}
    for path in sorted((ROOT / "dumpcmp").rglob("*.py")):
        tree = ast.parse(path.read_text())
        constants = {
            node.targets[0].id: spelled(node.value, {})
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        for call in _calls(tree, known):
            hints = [k.value for k in call.keywords if k.arg == "hint"]
            text = spelled(call.args[0], constants) if call.args else ""
            hint = spelled(hints[0], constants) if hints else ""
            if text.strip("‹…› "):
                found[Message(call.func.id, text, hint)] = None  # type: ignore[attr-defined]
    return list(found)


def _calls(tree: ast.AST, known: dict[str, str]) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known:
            yield node


def spelled(node: ast.expr, constants: dict[str, str]) -> str:
    """The text of an expression, with ‹names› where something is filled in."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(spelled(part, constants) for part in parts)
        case ast.FormattedValue(value=value):
            return f"‹{_word(value)}›"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return spelled(left, constants) + spelled(right, constants)
        case ast.IfExp(body=body):
            return spelled(body, constants)
        case ast.Name(id=name) if name in constants:
            return constants[name]
        case _:
            return "‹…›"


def _word(value: ast.expr) -> str:
    """A name for what is filled in: the last word of the expression."""
    match value:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(args=[first, *_]):
            return _word(first)
        case ast.Call(func=ast.Attribute(value=inner)):
            return _word(inner)
        case ast.Subscript(value=inner):
            return _word(inner)
        case _:
            return "…"


def page() -> str:
    """The whole page."""
    groups: dict[str, list[Message]] = defaultdict(list)
    for message in messages():
        groups[message.error].append(message)
    parts = [HEAD]
    for error, doc in error_classes().items():
        if not groups[error]:
            continue
        parts.append(f"\n## {error}\n\n{doc}\n")
        for message in groups[error]:
            hint = f"\n  Next: {message.hint}" if message.hint else ""
            parts.append(f"- **{message.text}**{hint}")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
