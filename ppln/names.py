"""The name that was meant, where one is not known."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The most similar of these names, if one is similar: by difflib's ratio, `cutoff` or more."""
    close = get_close_matches(name, list(names), n=1, cutoff=cutoff)
    return close[0] if close else None


def meant(name: str, names: Iterable[str]) -> str:
    """For the end of an error: the name that may have been meant, or else all there are."""
    names = list(names)
    close = nearest(name, names)
    return f"there are {', '.join(names)}" if close is None else f"did you mean {close}?"


def suggestion(name: str, names: Iterable[str]) -> str:
    """For the end of an error: the name that may have been meant, and all there are."""
    names = list(names)
    close = nearest(name, names)
    there_are = "there are" if close is None else f"did you mean {close!r}? There are"
    return f"{there_are} {', '.join(names)}"
