"""Tables of Markdown."""

from collections.abc import Sequence


def grid(rows: Sequence[Sequence[str]], *, padded: bool = True) -> str:
    """A table of rows of cells, the first one its head; padded: its columns line up as plain text, too."""
    cells = [[" ".join(cell.split()).replace("|", r"\|") for cell in row] for row in rows]
    widths = [max(map(len, column)) if padded else 0 for column in zip(*cells, strict=True)]
    lines = [f"| {' | '.join(c.ljust(w) for c, w in zip(row, widths, strict=True))} |" for row in cells]
    rule = "| " + " | ".join("-" * max(3, width) for width in widths) + " |"
    return "\n".join([lines[0], rule, *lines[1:]])
