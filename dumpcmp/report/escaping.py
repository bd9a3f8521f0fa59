"""Names and errors as text: what would steer a terminal or a spreadsheet is spelled out."""

_FORMULA = ("=", "+", "-", "@")


def visible(text: str, keep: str = "") -> str:
    """`text` with everything that does not print spelled out, such as ``\\x1b``, but for `keep`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _spelled(c) for c in text)


def _spelled(character: str) -> str:
    return character.encode("unicode_escape").decode()


def as_cell(text: str) -> str:
    """`text` as a cell that no spreadsheet takes for a formula: a space goes before its sign."""
    shown = visible(text)
    return f" {shown}" if shown.startswith(_FORMULA) else shown
