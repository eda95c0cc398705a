"""Progress on stderr: lines where there is no terminal, a bar where there is one."""

import io
import re
import sys
import time

import pytest

from ppln import progress
from ppln.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def until(condition):
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it never came")


def test_lines_where_there_is_no_terminal(monkeypatch, capsys):
    said = ""

    def has(line):
        nonlocal said
        said += capsys.readouterr().err
        return re.search(f"^{line} after [0-9]+ s$", said, re.MULTILINE)

    monkeypatch.setattr(progress, "EVERY_S", 0.01)
    with Progress("deblur") as tell:
        time.sleep(0.05)
        tell("events read", 1_234_567)
        until(lambda: has("ppln deblur: 1,234,567 events read"))  # also while nothing is done
        tell("frames", 3, 1400)
        until(lambda: has("ppln deblur: 3 of 1,400 frames"))
    assert said.startswith("ppln deblur: 1,234,567 events")  # nothing before it is called
    assert "\r" not in said
    assert "\x1b" not in said
    capsys.readouterr()
    time.sleep(0.05)
    assert capsys.readouterr().err == ""


def test_what_is_short_says_nothing(capsys):
    with Progress("deblur") as tell:
        tell("frames", 3, 14)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("printed_to", ["terminal", "file"])
def test_a_bar_on_a_terminal(printed_to, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    shown, printed = Terminal(), Terminal() if printed_to == "terminal" else io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(sys, "stdout", printed)
    with Progress("simulate") as tell:
        tell("events", 5)
        tell("frames", 3, 14)
        print("a line")
    assert "3 of 14 frames" in shown.getvalue()
    assert shown.getvalue().endswith("\x1b[2K")  # it is wiped off
    assert ("a line" in shown.getvalue()) == (printed_to == "terminal")  # above the bar
    assert ("a line" in printed.getvalue()) == (printed_to == "file")


@pytest.mark.parametrize("lack", ["rich", "terminal"])
def test_lines_where_no_bar_can_be_drawn(lack, monkeypatch):
    monkeypatch.setattr(progress, "EVERY_S", 0.01)
    monkeypatch.setenv("TERM", "dumb" if lack == "terminal" else "xterm")
    if lack == "rich":
        monkeypatch.setitem(sys.modules, "rich.console", None)
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    with Progress("simulate") as tell:
        tell("frames", 3, 14)
        until(lambda: "ppln simulate: 3 of 14 frames after 0 s\n" in shown.getvalue())


class Broken(io.StringIO):
    tried = 0

    def write(self, text):
        self.tried += 1
        raise BrokenPipeError


def test_without_a_reader_it_goes_on(monkeypatch):
    monkeypatch.setattr(progress, "EVERY_S", 0.001)
    broken = Broken()
    monkeypatch.setattr(sys, "stderr", broken)
    with Progress("simulate") as tell:
        tell("frames", 1, 5)
        until(lambda: broken.tried > 2)
    monkeypatch.setattr(sys, "stderr", None)
    with Progress("simulate") as tell:
        tell("frames", 1, 5)
