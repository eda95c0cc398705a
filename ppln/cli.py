"""The command line: parse, call, print."""

import os
import signal
import sys
import threading
import warnings
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import ppln
from ppln.errors import HELP, Help, explain, in_options, printable
from ppln.names import meant

if TYPE_CHECKING:
    from ppln.options import Command

_ENDS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class _Entry(NamedTuple):
    """A command. Its room is imported when it is called."""

    about: str
    room: str
    options: str  # a dataclass of the room; or a function of words, which gives the Command and the options
    run: str  # a function of the room: options and screen -> what is to be printed
    positional: bool = True  # what must be given is told by its place


_COMMANDS = {
    "demo": _Entry(
        "see what it does: a simulated blurry recording made sharp, as a page to open", "demo", "Demo", "show"
    ),
    "deblur": _Entry("make a sharp film of a recording's blurry frames", "films", "DeblurOptions", "run"),
    "steer": _Entry(
        "find the angle of a car's steering wheel in a recording: as a film and a table",
        "steer_films",
        "SteerOptions",
        "run",
    ),
    "pose": _Entry(
        "find a person's joints in space, from two recordings: as a film, a table and a motion",
        "pose_films",
        "PoseOptions",
        "run",
    ),
    "info": _Entry(
        "tell what is in a recording, as text and as a picture", "report.recording", "Info", "show"
    ),
    "convert-recording": _Entry(
        "write a recording of any known format as one HDF5 file", "events.convert", "Convert", "run"
    ),
    "simulate": _Entry(
        "write what an event camera would have recorded of a video", "events.video", "Simulate", "run"
    ),
    "models": _Entry("list the networks there are, or tell all about one", "models.zoo", "Models", "show"),
    "prepare": _Entry(
        "cut recordings into samples to train and evaluate networks on",
        "datasets.commands",
        "asked_for",
        "run",
    ),
    "train": _Entry(
        "train a network for deblurring, steering or pose, or go on with a training",
        "engine.arguments",
        "asked_for",
        "run",
    ),
    "evaluate": _Entry(
        "measure how good a network is, on data whose truth is known", "engine.results", "asked_for", "run"
    ),
    "compare": _Entry(
        "tell how far the results of two methods differ, and how certain that is",
        "engine.compare",
        "Compare",
        "run",
        positional=False,
    ),
    "export": _Entry(
        "write a trained network as one file, for ppln, ONNX or torch.export",
        "engine.export",
        "Export",
        "run",
    ),
    "reproduce": _Entry(
        "repeat our comparisons: train and evaluate all methods again, and make the tables",
        "study.command",
        "asked_for",
        "run",
    ),
    "bench": _Entry(
        "measure time and memory of layers and networks, beside the alternatives", "bench", "Bench", "show"
    ),
}


def main() -> None:
    words = sys.argv[1:]
    debug = "--debug" in words
    name, *arguments = [word for word in words if word != "--debug"] or ["--help"]
    if name in HELP:
        print(_usage())
    elif name == "--version":
        print(f"ppln {ppln.__version__}")
    elif name not in _COMMANDS:
        sys.exit(f"ppln: there is no command {name!r}; {meant(name, _COMMANDS)}")
    else:
        _end(*_run(name, arguments, debug))


def _usage() -> str:
    return "\n".join(
        [
            "usage: ppln COMMAND [OPTIONS]\n",
            "Parametric piecewise linear networks (PPLN; the paper is Song et al., NeurIPS 2024) for event",
            "cameras, whose pixels report every change of light at once, each as an event. There are three",
            "tasks: deblur, a blurry recording made sharp; steering, the angle of a steering wheel; pose,",
            "where a person's joints are.\n",
            *(f"  {name:19}{entry.about}" for name, entry in _COMMANDS.items()),
            "\n`ppln COMMAND --help` tells the options of a command, and `ppln --version` the version.",
            "To begin: `ppln demo`. An error is one line; with --debug, a traceback in place of it.",
        ]
    )


def _run(name: str, words: list[str], debug: bool) -> tuple[str, int]:
    """Do what a command is asked for -> an error in a line, if there is one, and the exit code."""
    flags: dict[str, str] = {}  # of the command, once its options are known
    alone = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in _ENDS}
    format_warning = warnings.formatwarning
    try:
        warnings.formatwarning = lambda message, *_: _shown(f"ppln {name}: {message}") + "\n"
        room = _import_first(name, words)
        for number, was in before.items():
            if alone and was is not signal.SIG_IGN:  # as after nohup
                signal.signal(number, _terminate)
        try:
            asked, options = _parse(name, room, words)
            # What was typed is told as it was: a file may be called as an argument is.
            flags |= {name: flag for name, flag in asked.flags.items() if name not in words}
            text = _call(name, room, options, flags)
        except Help as help:
            text = str(help)
        if text:
            print(_shown(text))
        if sys.stdout is not None:  # it is closed, as by `>&-`
            sys.stdout.flush()
    except BrokenPipeError:  # nobody reads on, as of `ppln info FILE | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except BaseException as error:
        told, code = ("terminated", error.number) if isinstance(error, _Terminated) else explain(error, flags)
        if debug or not told:
            raise
        return printable(f"ppln {name}: {told}"), code
    finally:
        warnings.formatwarning = format_warning
        for number, was in before.items():
            if alone:
                signal.signal(number, was)
    return "", 0


def _parse(name: str, room: Any, words: list[str]) -> "tuple[Command, Any]":
    from ppln.options import command

    what = getattr(room, _COMMANDS[name].options)
    if not isinstance(what, type):
        return what(words)
    asked = command(what, f"ppln {name}", positional=_COMMANDS[name].positional)
    return asked, asked.call(asked.given(words))


def _call(name: str, room: Any, options: Any, flags: Mapping[str, str]) -> str:
    from ppln.progress import Progress, Screen

    def note(line: str) -> None:
        print(_shown(in_options(line, flags)), file=sys.stderr)

    def say(line: str) -> None:
        print(_shown(line), flush=True)

    with Progress(name) as progress:
        return getattr(room, _COMMANDS[name].run)(options, Screen(progress, say, note))


def _shown(text: str) -> str:
    """Lines that may quote files, and names of files, none of which is to command the terminal."""
    return "\n".join(map(printable, text.split("\n")))


def _end(message: str, code: int) -> None:
    if "ppln.engine.fabric" in sys.modules:  # else there is one process
        from ppln.engine.fabric import leave

        leave(message, code)
    if code == 1:
        sys.exit(message)
    if code:
        print(message, file=sys.stderr)
        sys.exit(code)


class _Terminated(SystemExit):
    """By SIGTERM or a closed terminal. What was begun is cleared away, as it is after Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _terminate(number: int, frame: Any) -> None:
    raise _Terminated(128 + number)


def _import_first(name: str, words: list[str]) -> Any:
    """The room of a command, and what takes long to import.

    Meanwhile Ctrl-C ends the process at once: imports may swallow it.
    """

    def end(number: int, frame: Any) -> None:
        print(f"ppln {name}: interrupted", file=sys.stderr, flush=True)
        os._exit(130)

    alone = threading.current_thread() is threading.main_thread()
    alone = alone and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN  # as of `ppln ... &` in a script
    before = signal.signal(signal.SIGINT, end) if alone else None
    try:
        if name not in ("info", "convert-recording") and set(HELP).isdisjoint(words):
            import torch  # noqa: F401
        if name in ("train", "evaluate", "reproduce"):
            with suppress(ModuleNotFoundError):  # it is told where it is needed
                import lightning_fabric  # noqa: F401
        return import_module(f"ppln.{_COMMANDS[name].room}")
    finally:
        if alone:
            signal.signal(signal.SIGINT, before)
