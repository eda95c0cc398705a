"""Options of commands: what words are read as, what the help says, and how mistakes are told."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from ppln.options import POSITION, Help, command, of_names


@dataclass(frozen=True)
class Reading:
    sensor: Annotated[tuple[int, int] | None, "HEIGHT WIDTH"] = None
    """Rows and
    columns. Default: as the file tells."""
    repair: bool = False
    """Mend it."""

    def __post_init__(self) -> None:
        if self.sensor == (0, 0):
            raise ValueError("sensor is 0 0; give a size")


@dataclass(frozen=True)
class Convert:
    """Write it
    as another."""

    source: Path
    """The recording."""
    out: Path
    """The file
    to write."""
    kind: Literal["a", "b", 3] = "a"
    """Which kind."""
    gain: float = 0.5
    """How bright."""
    rows: tuple[str, ...] = ()
    """Only these. Default: all."""
    count: int | None = None
    """How many. Default: all."""
    options: dict[str, Any] = field(default_factory=dict)
    """More. Default: none."""
    verify: bool = True
    """Look again."""
    reading: Reading = Reading()
    """How it is read."""


def ask(what, name, words, **how):
    asked = command(what, name, **how)
    return asked.call(asked.given(words))


def given(words: str) -> Convert:
    return ask(Convert, "ppln convert", words.split())


def wanted(**values: Any) -> Convert:
    return Convert(Path("in.es"), Path("out.h5"), **values)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("", {}),
        ("--gain -1e-3 --count=7", {"gain": -1e-3, "count": 7}),
        ("--count 7 --count None", {"count": None}),
        ("--kind 3 --no-verify", {"kind": 3, "verify": False}),
        ("--no-verify --verify --repair", {"reading": Reading(repair=True)}),
        ("--rows x y --sensor 3 4", {"rows": ("x", "y"), "reading": Reading((3, 4))}),
        ("--sensor 3 4 --sensor None", {}),
        (
            "--options a=1 b=1e2 c=true d=None e=none f=x=y",
            {"options": {"a": 1, "b": 100.0, "c": True, "d": None, "e": "none", "f": "x=y"}},
        ),
    ],
)
def test_values(words, values):
    assert given(f"in.es out.h5 {words}") == wanted(**values)


def test_places_may_be_anywhere():
    assert given("--gain 2 in.es --sensor 3 4 out.h5 --no-verify") == wanted(
        gain=2.0, reading=Reading((3, 4)), verify=False
    )
    assert ask(Convert, "x", ["--source=in.es", "-o", "out.h5"], positional=False) == wanted()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--gian 3", "there is no option --gian; did you mean --gain? see ppln convert --help"),
        ("--zzz", "there is no option --zzz; see ppln convert --help"),
        ("--gain x", "--gain is x; give a number; see ppln convert --help"),
        ("--gain None", "--gain is None; give a number; see ppln convert --help"),
        ("--gain", "--gain has no value; give a number; see ppln convert --help"),
        ("--gain --no-verify", "--gain has no value; give a number; see ppln convert --help"),
        ("--count 1.5", "--count is 1.5; give a whole number; see ppln convert --help"),
        (f"--count {2**63}", f"--count is {2**63}; give a whole number; see ppln convert --help"),
        ("--kind c", "--kind is c; give a, b or 3; see ppln convert --help"),
        ("--sensor 3", "--sensor is 3; give HEIGHT WIDTH, each a whole number; see ppln convert --help"),
        ("--sensor 3 x", "--sensor is 3 x; give HEIGHT WIDTH, each a whole number; see ppln convert --help"),
        ("--sensor 0 0", "--sensor is 0 0; give a size"),
        ("--options a", "--options is a; give NAME=VALUE, such as width=8; see ppln convert --help"),
        ("--verify=1", "--verify is 1; give --verify alone, without a value; see ppln convert --help"),
        ("more", "more is one word too many; ppln convert takes SOURCE OUT; see ppln convert --help"),
    ],
)
def test_mistakes(words, message):
    with pytest.raises(ValueError) as caught:
        given(f"in.es out.h5 {words}")
    assert str(caught.value) == message


def test_what_is_missing():
    with pytest.raises(ValueError, match=r"^OUT is missing; give a path; see ppln convert --help$"):
        given("in.es")
    with pytest.raises(ValueError, match=r"^--source is missing; give a path; see x --help$"):
        ask(Convert, "x", [], positional=False)


def test_help(monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    with pytest.raises(Help) as told:
        given("in.es --help")
    assert (
        str(told.value)
        == """\
usage: ppln convert SOURCE OUT [OPTIONS]

Write it as another.

  SOURCE                    The recording.
  OUT                       The file to write.

Options:
  --kind a|b|3              Which kind. Default: a.
  --gain NUMBER             How bright. Default: 0.5.
  --rows NAME ...           Only these. Default: all.
  --count N                 How many. Default: all.
  --options NAME=VALUE ...  More. Default: none.
  --[no-]verify             Look again. Default: yes.

How it is read:
  --sensor HEIGHT WIDTH     Rows and columns. Default: as the file
                            tells.
  --repair                  Mend it."""
    )


@dataclass(frozen=True)
class Film:
    """Make a film."""

    recording: Annotated[Path | None, POSITION] = None
    """A recording: a file,
    or a folder. Default: none."""
    out: Path | None = None
    """The film."""
    fps: float = 25.0


def test_a_place_may_be_left_out():
    assert ask(Film, "x", ["--fps", "2"]) == Film(fps=2.0)
    assert ask(Film, "x", ["-o", "a", "b"]) == Film(Path("b"), Path("a"))
    text = command(Film, "x").help()
    assert text.startswith("usage: x [RECORDING] [OPTIONS]\n\nMake a film.\n\n  RECORDING ")
    assert "A recording: a file, or a folder. Default: none.\n" in text
    assert "  -o, --out PATH            The film.\n" in text
    # A value that is there stands for what there would be without it.
    assert "A recording: a file, or a folder. Default: a.\n" in command(Film(Path("a")), "x").help()


@dataclass(frozen=True)
class Count:
    """Count something, for as long as it takes. For example: x --count 4"""

    count: int = 3
    """How many."""


def test_an_example_has_a_line_of_its_own(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    lines = command(Count, "x").help().splitlines()
    assert lines[2:6] == ["Count something, for as long as it", "takes.", "For example: x --count 4", ""]


def test_options_may_stand_apart_below_their_section():
    asked = command(Convert, "x")
    text = asked._replace(headings={"gain": "Of light", "repair": "Of faults"}).help()
    titles = [line for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    assert titles == ["Options:", "Of light:", "How it is read:", "Of faults:"]
    assert "--gain" in text.partition("Of light:")[2].partition("How it is read:")[0]


def test_an_instance_has_the_defaults():
    asked = command(wanted(gain=2.0, reading=Reading((3, 4))), "x", positional=False)
    assert {(o.section, o.name): o.default for o in asked.options if o.name in ("gain", "sensor", "out")} == {
        ("", "gain"): 2.0,
        ("reading", "sensor"): (3, 4),
        ("", "out"): Path("out.h5"),
    }
    assert asked.given(["--gain", "3", "--repair"]) == {"": {"gain": 3.0}, "reading": {"repair": True}}


@dataclass(frozen=True)
class Within:
    repair: bool = False
    size: tuple[int, int] | None = None


@dataclass(frozen=True)
class Given:
    file: Path
    others: tuple[Path, ...] = ()
    rate: float = 1.0
    name: str = "a/b"
    within: Within = Within(size=(3, 4))


def test_what_python_gives_by_names():
    assert of_names(Given, {"file": "a"}) == Given(Path("a"))
    given = of_names(Given, {"file": Path("a"), "others": ["b", Path("c")], "name": "d", "repair": True})
    assert given == Given(Path("a"), (Path("b"), Path("c")), name="d", within=Within(True, (3, 4)))
    assert of_names(Given, {"file": "a", "size": None}).within == Within()
    assert of_names(Given, {"file": "a", "within": Within(True)}).within == Within(True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'rte'"):
        of_names(Given, {"file": "a", "rte": 2.0})
