"""What a command line tells of an error: a line, in the words of options, and an exit code.

Messages name arguments as Python does. `in_options` is the one place where they become options:

    exposure_us is (7, 7)     --exposure-us is (7, 7)
    give overwrite=True       give --overwrite
    between='carry' fills it  --between carry fills it
    leave out camera=3        leave out --camera 3
    rows: there is no 'a'     --rows: there is no 'a'
    needs compare=FILM        needs --compare FILM
    read with repair=True     give --repair
    `read(repair=True)`       `read(repair=True)`
"""

import re
import sys
from collections.abc import Mapping

HELP = ("-h", "--help")
LONGEST_TEXT = 2000  # characters of a line that a person is shown
_VALUE = r"=(?P<value>True|\d+|'[^']*'|[A-Z]+|\([A-Z, ]+\))"
_ARGUMENT = re.compile(
    r"`[^`]*`"  # code stays code
    r"|(?:^|(?<=: ))(?P<subject>\w+)(?= (?:is|are|has|needs|and) )"  # "frames", too, may be a mere word
    r"|^(?P<head>\w+)(?=: )"
    r"|(?<= and )(?P<other>\w+)(?= is )"
    rf"|(?P<read>read with )?(?<![\w./'\"-])(?<!dataset )(?P<name>[a-z]\w*)(?:{_VALUE})?(?![\w/=-]|\.\w)"
)
_LESS_MEMORY = {
    "batch": "lower --batch",
    "accumulate": "raise --accumulate",
    "precision": "use --precision bf16",
}


class Help(Exception):  # noqa: N818
    """No error, but what `--help` asked for; the command line prints it."""


class Stopped(Exception):  # noqa: N818
    """An error of a kind of its own, with the exit code of a command, and what to do about it."""

    code = 1
    advice = ""


def printable(text: str) -> str:
    """As it is, but for characters that command a terminal or hide: those are written as \\x1b is."""
    if len(text) > LONGEST_TEXT:
        text = f"{text[: LONGEST_TEXT // 2]} ... {text[-LONGEST_TEXT // 2 :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def in_options(text: str, flags: Mapping[str, str]) -> str:
    """A message with the options of a command in place of Python's arguments. flags: by name of argument.

    A flag without dashes is said as it is.
    """

    def option(found: re.Match[str]) -> str:
        name = found["subject"] or found["head"] or found["other"] or found["name"]
        value = found["value"]
        is_mere_word = found["name"] and value is None and "_" not in name
        if name not in flags or is_mere_word:
            return found[0]
        give = "give " if found["read"] and flags[name].startswith("-") else ""
        values = "" if value in (None, "True") else " " + value.strip("'()").replace(",", "")
        return give + flags[name] + values

    return _ARGUMENT.sub(option, text)


def explain(error: BaseException, flags: Mapping[str, str]) -> tuple[str, int]:
    """What went wrong and what to do, in a line, and the exit code; nothing for what nobody foresaw."""
    text = " ".join(str(error).split())
    if isinstance(error, Stopped):
        return in_options(": ".join(filter(None, [text, error.advice])), flags), error.code
    text = in_options(text, flags)
    if isinstance(error, ModuleNotFoundError) and "pip install" not in text:
        return f"{text}; run: pip install 'torch-ppln[all]'", 1
    if isinstance(error, ValueError | OSError | ModuleNotFoundError):
        return text, 1
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    if isinstance(error, MemoryError) and text:  # one of our own, which says what to do
        return text, 1
    if isinstance(error, MemoryError) or _is_torch_out_of_memory(error):
        advice = [of for name, of in _LESS_MEMORY.items() if name in flags] or ["give it less at a time"]
        *first, last = advice
        told = ", ".join([*first, f"or {last}"]) if first else last
        return f"out of memory; {told}" + f" ({text[:160]})" * bool(text), 1
    return "", 1


def _is_torch_out_of_memory(error: BaseException) -> bool:
    torch = sys.modules.get("torch")  # it takes seconds to import, and whoever raised it has done so
    on_gpu = torch is not None and isinstance(error, torch.OutOfMemoryError)
    return on_gpu or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
