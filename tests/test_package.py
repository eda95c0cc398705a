"""What is declared about the distribution, and that no line of ours makes people install another one."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.version import Version

import ppln

ROOT = Path(__file__).parents[1]
SETUP = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = SETUP["project"]
NEEDS = [Requirement(line) for line in PROJECT["dependencies"]]
EXTRAS = {name: list(map(Requirement, lines)) for name, lines in PROJECT["optional-dependencies"].items()}
TORCH = next(need.specifier for need in NEEDS if need.name == "torch")

OURS, IMPORTED = "torch-ppln", "ppln"  # on PyPI, the second is somebody else's
INSTALLS = re.compile(
    r"""
      \b(?:pip[x3]?\ install|uv\ add|poetry\ add)\b[^\n;|&\#`]*(?<![\w./-])ppln(?![\w./-])  # in a command
    | \b(?:re)?install\ ppln\b  # in prose
    | (?<![\w.-])ppln\\?\[  # with an extra, also in a pattern of a test
    | (?<![\w.-])ppln\s?[=~<>]=\s?\d  # with a version
    """,
    re.VERBOSE,
)
JOINED = re.compile(r"\\\n\s*|(['\"])\s*\n\s*[frb]*\1")  # a command or a string that goes on in the next line


def installs(text: str) -> list[str]:
    return [hit[0] for hit in INSTALLS.finditer(JOINED.sub("", text))]


def test_names():
    assert PROJECT["name"] == OURS
    assert PROJECT["scripts"] == {IMPORTED: f"{IMPORTED}.cli:main"}
    assert SETUP["tool"]["setuptools"]["packages"]["find"]["include"] == [f"{IMPORTED}*"]


def test_the_version_is_written_once():
    assert "version" not in PROJECT
    assert SETUP["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "ppln.__version__"}
    assert str(Version(ppln.__version__)) == ppln.__version__


def test_the_layers_need_three_packages():
    assert sorted(need.name for need in NEEDS) == ["numpy", "safetensors", "torch"]


def test_nothing_is_pinned_but_in_the_constraints():
    for need in (*NEEDS, *(need for needs in EXTRAS.values() for need in needs)):
        assert not [x for x in need.specifier if x.operator in ("==", "===")], need
    (pin,) = map(Requirement, (ROOT / "constraints.txt").read_text().splitlines())
    assert str(pin) == "torch==2.13.0"


def test_the_range_of_torch():
    assert all(version in TORCH for version in ("2.11.0", "2.11.1", "2.12.0", "2.13.0", "2.13.1"))
    assert not any(version in TORCH for version in ("2.10.0", "2.14.0", "3.0"))
    assert TORCH.contains(Version(torch.__version__).base_version)  # no test says anything of another


def test_extras_refer_to_our_own():
    inner = {name: [need for need in needs if need.name.endswith("ppln")] for name, needs in EXTRAS.items()}
    assert {name for name, needs in inner.items() if needs} == {"all", "dev"}
    for needs in filter(None, inner.values()):
        (need,) = needs
        assert need.name == OURS
        assert need.extras <= set(EXTRAS)
    assert inner["all"][0].extras == set(EXTRAS) - {"all", "dev"}


@pytest.mark.parametrize(
    "line",
    [
        "pip install NAME",
        "pip install --upgrade 'NAME[io]'",
        "pip install NAME==0.1.0",
        r"match=r'pip install \'NAME\[all\]'",
        "python -m pip install torch NAME",
        "pip3 install -U NAME",
        "pip install --constraint x.txt \\\n    NAME",
        'f"{what} is missing; "\n    f"run: pip install "\n    f"NAME"',
        "uv add NAME",
        "run: pipx install NAME.",
        "install one and reinstall NAME",
        '"NAME[export,io]",',
        "NAME >= 0.1",
    ],
)
def test_lines_that_install_are_seen(line):
    assert installs(line.replace("NAME", IMPORTED))
    assert not installs(line.replace("NAME", OURS))


@pytest.mark.parametrize(
    "line",
    [
        "pip install . && NAME demo",
        "`pip install '.[io]'` is enough for NAME info",
        "pip install '.[export]'  # NAME export",
        "pip install dist/NAME.whl",
        "makes .venv, installs NAME into it",
        'header["NAME"]["options"]',
        "import torch, NAME",
        '"pip install ."\n    , "NAME"',
    ],
)
def test_other_lines_may_name_it(line):
    assert not installs(line.replace("NAME", IMPORTED))


def test_no_line_installs_another_package():
    git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a checkout of git")
    found = []
    for path in map(ROOT.joinpath, filter(None, listed.split("\0"))):
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            continue  # a picture, or weights; deleted, but not yet for git
        found += [f"{path.relative_to(ROOT)}: {hit}" for hit in installs(text)]
    assert found == []
