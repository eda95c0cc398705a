"""Options of commands: a dataclass says which there are, and the docstrings of its fields what they mean.

    asked = command(Info, "ppln info")
    info = asked.call(asked.given(["recording.es", "--plot", "out.png"]))

What must be given is told by its place, FILE, and all else by its name, --plot; a field that is a dataclass
stands for its own fields. In Annotated, POSITION makes a place of what may be left out, and a string says
what a value is in the help. An error is one line that names the option, its value and what to do.
"""

import ast
import inspect
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from ppln.errors import HELP, Help, in_options
from ppln.forms import SCALAR, WORDS, convert
from ppln.names import nearest

T = TypeVar("T")
POSITION = object()
_SHORT = {"-o": "--out", "-h": "--help"}
_LIKE_A_FLAG = re.compile(r"--|-[A-Za-z]")  # a negative number is none
_VALUES = {int: "N", float: "NUMBER", Path: "PATH", str: "NAME", bool: ""}
_COLUMN, _WIDTH = 26, 100
_NO_BREAK = "\xa0"


class Option(NamedTuple):
    section: str  # the field that it is within; "" of the command's own
    name: str
    kind: Any  # without None
    default: Any  # MISSING: it must be given
    help: str
    value: str  # what stands for it in the help
    is_position: bool = False
    is_optional: bool = False  # None is a value of it

    @property
    def flag(self) -> str:
        return self.value if self.is_position else f"--{self.name.replace('_', '-')}"

    @property
    def most(self) -> int | None:
        """Words of a value; None: any number."""
        if get_origin(self.kind) is tuple and ... not in get_args(self.kind):
            return len(get_args(self.kind))
        return None if get_origin(self.kind) in (tuple, dict) else 1

    @property
    def wanted(self) -> str:
        """What to give."""
        if get_origin(self.kind) is tuple and self.most:
            return f"{self.value}, each {_wanted(get_args(self.kind)[0])}"
        return _wanted(self.kind)

    def read(self, words: Sequence[str]) -> Any:
        try:
            return None if self.is_optional and list(words) == ["None"] else _read(self.kind, words)
        except ValueError:
            told = f"is {' '.join(words)}" if words else "has no value"
            raise ValueError(f"{self.flag} {told}; give {self.wanted}") from None


class Command(NamedTuple):
    """What a command can be asked."""

    what: Any  # a dataclass, or an instance
    name: str  # as it is typed, such as "ppln info"
    about: str  # a sentence or more
    options: list[Option]
    titles: dict[str, str]  # of sections
    headings: Mapping[str, str] = MappingProxyType({})  # of options that stand apart, by name, instead

    def given(self, words: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The values that these words give: by section, by name. `--help` among them raises Help."""
        if not set(HELP).isdisjoint(words):
            raise Help(self.help())
        try:
            return self._given(list(words))
        except ValueError as error:
            raise ValueError(f"{error}; see {self.name} --help".replace("?;", "?")) from None

    def _given(self, rest: list[str]) -> dict[str, dict[str, Any]]:
        flags = {option.flag: option for option in self.options if not option.is_position}
        flags |= {f"--no-{flag[2:]}": option for flag, option in flags.items() if option.kind is bool}
        found: dict[str, dict[str, Any]] = {option.section: {} for option in self.options}
        places = [option for option in self.options if option.is_position]
        free = list(places)
        while rest:
            word = rest.pop(0)
            if not _LIKE_A_FLAG.match(word):
                if not free:
                    takes = " ".join(place.flag for place in places) or "no word without an option"
                    raise ValueError(f"{word} is one word too many; {self.name} takes {takes}")
                option, words = free.pop(0), [word]
            else:
                flag, equals, value = word.partition("=")
                flag = _SHORT.get(flag, flag).replace("_", "-")
                if flag not in flags:
                    close = nearest(flag, flags, cutoff=0.75)
                    perhaps = f"; did you mean {close}?" if close else ""
                    raise ValueError(f"there is no option {flag}{perhaps}")
                option = flags[flag]
                if option.kind is bool:
                    if equals:
                        raise ValueError(f"{flag} is {value}; give {flag} alone, without a value")
                    found[option.section][option.name] = not flag.startswith("--no-")
                    continue
                words = [value] if equals else _take(rest, option.most)
            found[option.section][option.name] = option.read(words)
        for option in self.options:
            if option.default is MISSING and option.name not in found[option.section]:
                raise ValueError(f"{option.flag} is missing; give {option.wanted}")
        return found

    def call(self, given: Mapping[str, Mapping[str, Any]]) -> Any:
        """The dataclass, with these values."""
        values = dict(given.get("", {}))
        for name, default in _defaults(self.what).items():
            if name in given:
                values[name] = self.flagged(partial(replace, default, **given[name]))
        make = self.what if isinstance(self.what, type) else partial(replace, self.what)
        return self.flagged(partial(make, **values))

    @property
    def flags(self) -> dict[str, str]:
        """What is typed for an argument, by its name; or said of it, where the dataclass has words for it."""
        said = getattr(self.what, "SAID", {})
        return {**{option.name: option.flag for option in self.options}, **said}

    def flagged(self, make: Callable[[], T]) -> T:
        """What it makes; an error names options, and no fields."""
        try:
            return make()
        except ValueError as error:
            raise ValueError(in_options(str(error), self.flags)) from None

    def help(self) -> str:
        width = min(shutil.get_terminal_size().columns, _WIDTH)
        must = [option for option in self.options if option.is_position or option.default is MISSING]
        usage = [_usage(option) for option in must]
        rest = ["[OPTIONS]"] * (len(must) < len(self.options))
        lines = [f"usage: {' '.join([self.name, *usage, *rest])}", ""]
        about, begin, example = self.about.partition("For example: ")
        lines += [*textwrap.wrap(about, width), *([begin + example] if example else []), ""]
        lines += _rows([option for option in self.options if option.is_position], width)
        below: dict[str, list[Option]] = {}  # a title, of a section or within one
        for section, title in self.titles.items():
            below.setdefault(title, [])
            for option in self.options:
                if option.section == section and not option.is_position:
                    below.setdefault(self.headings.get(option.name, title), []).append(option)
        for title, there in below.items():
            lines += ["", f"{title}:", *_rows(there, width)] if there else []
        return "\n".join(lines).replace("\n\n\n", "\n\n").rstrip()


def of_names(what: type[T], given: Mapping[str, Any]) -> T:
    """The dataclass of what Python gives by names; a field that is a dataclass stands for its own fields.

    A path may be a string, and a tuple a list.
    """
    values = dict(given)
    for name, default in _defaults(what).items():
        if is_dataclass(default):
            of_its_own = {field.name for field in fields(default)} & values.keys()
            changes = {inner: values.pop(inner) for inner in of_its_own}
            values.setdefault(name, replace(default, **changes))  # type: ignore[type-var]
    for option in _options("", what, True):
        value = values.get(option.name)
        if option.kind is Path and isinstance(value, str):
            values[option.name] = Path(value)
        elif get_origin(option.kind) is tuple and isinstance(value, list | tuple):
            is_paths = Path in get_args(option.kind)
            values[option.name] = tuple(map(Path, value)) if is_paths else tuple(value)
    return what(**values)


def command(what: Any, name: str, about: str | None = None, positional: bool = True) -> Command:
    """What a dataclass can be asked; of an instance, its values are the defaults.

    positional: what must be given is told by its place. about: in place of its docstring.
    """
    options = _options("", what, positional)
    texts, titles = _texts(what if isinstance(what, type) else type(what)), {"": "Options"}
    for field, default in _defaults(what).items():
        if is_dataclass(default):
            titles[field] = texts.get(field, "").rstrip(".")
    about = about or inspect.getdoc(what) or ""
    return Command(what, name, " ".join(about.split()), options, titles)


def _options(section: str, what: Any, positional: bool) -> list[Option]:
    kind = what if isinstance(what, type) else type(what)
    texts, kinds, options = _texts(kind), get_type_hints(kind, include_extras=True), []
    for name, default in _defaults(what).items():
        if is_dataclass(default):
            options += _options(name, default, False)
        else:
            options.append(_option(section, name, kinds[name], default, texts.get(name, ""), positional))
    return options


def _option(section: str, name: str, kind: Any, default: Any, text: str, positional: bool) -> Option:
    notes: tuple[Any, ...] = ()
    if get_origin(kind) is Annotated:
        kind, *notes = get_args(kind)  # type: ignore[assignment]
    is_optional = get_origin(kind) in (Union, UnionType)
    if is_optional:
        (kind,) = (member for member in get_args(kind) if member is not NoneType)
    is_position = POSITION in notes or (positional and default is MISSING)
    value = next(
        (note for note in notes if isinstance(note, str)), name.upper() if is_position else _value(kind)
    )
    return Option(section, name, kind, default, text, value, is_position, is_optional)


def _defaults(what: Any) -> dict[str, Any]:
    """By name of the field; MISSING where there is none."""
    if not isinstance(what, type):
        return {f.name: getattr(what, f.name) for f in fields(what)}
    return {f.name: f.default if f.default_factory is MISSING else f.default_factory() for f in fields(what)}


def _texts(what: type) -> dict[str, str]:
    """What the docstrings below fields say."""
    found = {}
    for kind in filter(is_dataclass, reversed(what.__mro__)):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(tree, ast.ClassDef)
        for field, below in pairwise(tree.body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                found[ast.unparse(field.target)] = ast.literal_eval(below.value)
    return {name: " ".join(text.split()) for name, text in found.items()}


def _take(rest: list[str], most: int | None) -> list[str]:
    words: list[str] = []
    while rest and not _LIKE_A_FLAG.match(rest[0]) and len(words) != most and words != ["None"]:
        words.append(rest.pop(0))
    return words


def _read(kind: Any, words: Sequence[str]) -> Any:
    """What words say: a word is text, or what it reads like, whichever is of this type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is dict:
        return convert(kind, dict(_pair(word) for word in words))
    if origin is tuple:
        kinds = inner[:1] * len(words) if ... in inner else inner
        return tuple(_read(k, [word]) for k, word in zip(kinds, words, strict=True))
    (word,) = words
    try:
        return convert(kind, word)
    except ValueError:
        return convert(kind, _scalar(word))


def _pair(word: str) -> tuple[str, SCALAR]:
    name, equals, text = word.partition("=")
    if not (name and equals):
        raise ValueError
    return name, _scalar(text)


def _scalar(text: str) -> SCALAR:
    words: dict[str, SCALAR] = {"None": None, "True": True, "true": True, "False": False, "false": False}
    if text in words:
        return words[text]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _value(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "|".join(map(str, inner))
    if origin is tuple:
        return " ".join("..." if member is ... else _value(member) for member in inner)
    return "NAME=VALUE ..." if origin is dict else _VALUES[kind]


def _wanted(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        *others, last = map(str, inner)
        return f"{', '.join(others)} or {last}" if others else last
    if origin is tuple:
        return f"one or more, each {_wanted(inner[0])}"
    return "NAME=VALUE, such as width=8" if origin is dict else "a name" if kind is str else WORDS[kind]


def _usage(option: Option) -> str:
    if not option.is_position:
        return f"{option.flag} {option.value}"
    return option.flag if option.default is MISSING else f"[{option.flag}]"


def _rows(options: Iterable[Option], width: int) -> list[str]:
    lines = []
    for option in options:
        left = option.flag if option.is_position else f"{option.flag} {option.value}".rstrip()
        if option.default is True:
            left = f"--[no-]{option.flag[2:]}"
        left = f"-o, {left}" if option.flag == "--out" else left
        default = _default(option)
        text = option.help.partition(" Default: ")[0] if default else option.help
        text = f"{text} {default.replace(' ', _NO_BREAK)}"
        if len(left) >= _COLUMN - 1:
            lines.append(f"  {left}")
            left = ""
        for line in textwrap.wrap(text, width - _COLUMN - 2, break_on_hyphens=False):
            lines.append(f"  {left:{_COLUMN}}{line.replace(_NO_BREAK, ' ')}")
            left = ""
    return lines


def _default(option: Option) -> str:
    default = option.default
    if default is MISSING:
        return "" if option.is_position else "It must be given."
    if default is None or default is False or default == () or default == {}:
        return ""
    if default is True:
        return "Default: yes."
    if isinstance(default, dict):
        default = tuple(f"{name}={value}" for name, value in default.items())
    values = default if isinstance(default, tuple) else (default,)
    return f"Default: {' '.join(f'{v:.12g}' if isinstance(v, float) else str(v) for v in values)}."
