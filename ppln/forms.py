"""Values that others may have written: held to a form or made to be of a type, or an error of one line.
JSON is written as others can read it.

A form says what a value must be:

    int, str | None             of a type; an int will do for a float, but True for neither; of 64 bits
    object                      anything
    [form], (form, form)        a list of any length; of this length
    {str: form}                 by any names
    {"a": form, "b?": form}     by these names at least; b may be missing
    Maybe(form)                 or None

A type is that of a setting, such as tuple[int, ...] | None or Literal["32", "bf16"]: `convert` is for all of
them, be they from a file, a checkpoint, a command line or a program.
"""

import json
import math
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from ppln.files import write_whole

LARGEST_BYTES = 1 << 26  # of a file of values; those that are written here have far fewer
DEPTH = 40  # lists in lists; whoever walks through a value may call themselves as often
SCALAR = bool | int | float | str | None
NUMBER = float | str
"""As as_json has it: those that are not finite are text."""
SHOWN = 200  # characters of a value in an error

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}


class Maybe(NamedTuple):
    form: Any


@contextmanager
def errors_of(where: object) -> Iterator[None]:
    """Errors begin with where they are from, such as a file."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def read_json(path: Path, form: Any = object) -> Any:
    """What is in a file, of this form."""
    with errors_of(path):
        return parse_json(read_bytes(path), form)


def read_bytes(path: Path, most: int = LARGEST_BYTES) -> bytes:
    """All of a file, which must be one, and not be larger than so."""
    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise ValueError("it is not a file")
    if about.st_size > most:
        raise ValueError(f"it has {about.st_size:,} bytes, and such files have {most:,} at most")
    return path.read_bytes()


def write_json(path: Path, value: Any, *, overwrite: bool = True) -> None:
    """A file that is there whole or not at all."""
    text = json.dumps(as_json(value), indent=1, allow_nan=False) + "\n"
    write_whole(path, text, overwrite=overwrite)


def as_json(value: Any) -> Any:
    """As strict JSON can have it: numbers that are not finite, and what it does not know, become text."""
    if isinstance(value, Mapping):
        return {str(key): as_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def parse_json(text: bytes | str, form: Any = object) -> Any:
    """What a text says, of this form."""
    try:
        value = json.loads(text, object_pairs_hook=named_once)
    except UnicodeDecodeError:  # which would quote all of it
        raise ValueError("it is no text") from None
    except RecursionError:
        raise ValueError(f"it is nested more than {DEPTH} deep") from None
    except ValueError as error:
        if "integer string conversion" in str(error):  # Python's own words are for programmers
            raise ValueError("it has a number of thousands of digits") from None
        raise
    check_depth(value)
    check_form(value, form)
    return value


def named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Names and values; of two with one name, nobody knows which is meant."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"it names {shown(name)} twice; keep one")
        found[name] = value
    return found


def check_depth(value: Any) -> None:
    """Raise unless it can be walked through."""
    level = [value]
    for _ in range(DEPTH):
        level = [part for outer in level for part in _parts(outer)]
        if not level:
            return
    raise ValueError(f"it is nested more than {DEPTH} deep")


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def check_form(value: Any, form: Any, where: str = "") -> None:
    """Raise unless a value has a form; where: how to name it."""
    if isinstance(form, Maybe):
        if value is not None:
            check_form(value, form.form, where)
    elif isinstance(form, dict):
        if not isinstance(value, dict):
            raise ValueError(f"{where or 'it'} is {shown(value)}; expected names and values")
        for name, inner in _expected(value, form, where):
            check_form(value[name], inner, f"{where}.{name}".strip("."))
    elif isinstance(form, list | tuple):
        if not isinstance(value, list) or (isinstance(form, tuple) and len(value) != len(form)):
            many = f" of {len(form)}" if isinstance(form, tuple) else ""
            raise ValueError(f"{where or 'it'} is {shown(value)}; expected a list{many}")
        for k, part in enumerate(value):
            check_form(part, form[k] if isinstance(form, tuple) else form[0], f"{where}[{k}]")
    elif form is not object:
        kinds = get_args(form) if isinstance(form, UnionType) else (form,)
        if not any(_is_of(kind, value) for kind in kinds):
            words = " or ".join(WORDS.get(kind, "null") for kind in kinds)
            raise ValueError(f"{where or 'it'} is {shown(value)}; expected {words}")


def _expected(value: dict[str, Any], form: dict[Any, Any], where: str) -> Iterator[tuple[str, Any]]:
    """The names that a dictionary has and a form tells of."""
    if str in form:
        yield from ((name, form[str]) for name in value)
        return
    for name, inner in form.items():
        if name.removesuffix("?") in value:
            yield name.removesuffix("?"), inner
        elif not name.endswith("?"):
            raise ValueError(f"{f'{where}.{name}'.strip('.')} is missing")


def _is_of(kind: Any, value: Any) -> bool:
    """Whether it is of a simple type, and fits into 64 bits."""
    if type(value) is int:
        return kind in (int, float) and abs(value) < 2**63
    return type(value) is kind


def convert(kind: Any, value: Any, where: str = "it") -> Any:
    """The value as this type. Types are checked, not bent: only lists become tuples, and strings paths.

    where: how to name it in an error.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        for member in inner:
            try:
                return convert(member, value, where)
            except ValueError:
                continue
    elif origin is Literal:
        # In a file, 32 is a number.
        match = [choice for choice in inner if not isinstance(value, bool) and str(choice) == str(value)]
        if match:
            return match[0]
    elif origin is tuple and isinstance(value, list | tuple):
        kinds = inner[:1] * len(value) if inner[1:] == (...,) else inner
        if len(kinds) == len(value):
            parts = zip(kinds, value, strict=True)
            return tuple(convert(k, v, f"{where}[{i}]") for i, (k, v) in enumerate(parts))
    elif origin is dict and isinstance(value, Mapping):
        return {str(name): convert(inner[1], v, f"{where}.{name}") for name, v in value.items()}
    elif kind is Path and isinstance(value, str | Path):
        return Path(value)
    elif _is_of(kind, value):
        return float(value) if kind is float else value
    raise ValueError(f"{where} is {shown(value)}; give {wanted(kind)}")


def check_least(of: Any, least: int, *names: str) -> None:
    """An error, where one of these fields is below, or not finite; None will do."""
    for name in names:
        value = getattr(of, name)
        if value is not None and not least <= value < math.inf:
            raise ValueError(f"{name} is {value}; give {least} or more")


def wanted(kind: Any) -> str:
    """A type, in words."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(wanted(member) for member in inner)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in inner)
    if origin is tuple:
        if inner[1:] == (...,):
            return f"a list, each {wanted(inner[0])}"
        return f"a list of {len(inner)}: {', '.join(wanted(member) for member in inner)}"
    return WORDS.get(kind, "None" if kind is NoneType else "names and values")


def shown(value: Any) -> str:
    """A value in an error: so much of it that one knows it again."""
    try:
        return brief(repr(value))
    except ValueError:  # a number of thousands of digits
        return "too large"


def brief(text: str) -> str:
    """The beginning of a text, which may have come from anywhere."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
