"""The documentation is true: its code runs, its tree and links lead somewhere, its import rules are kept."""

import ast
import re
from pathlib import Path

import pytest
import torch

from ppln.cli import _COMMANDS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ppln"
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("howto-*.md"))]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """The line of the fence and the text of every fenced block in this language."""
    text = page.read_text()
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, block.start()) + 1, block[1]) for block in found]


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield
    torch.set_num_threads(before)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on the first use of inductor
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_code_runs(page: Path, one_thread, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippets = blocks(page, "python")
    assert snippets
    namespace = {"__name__": page.stem}
    for line, source in snippets:
        # Empty lines before it, so that a traceback names the line of the page.
        exec(compile("\n" * line + source, page, "exec"), namespace)


def tree() -> set[str]:
    """Paths in the README's tree; those of folders end with a slash."""
    (listing,) = (text for _, text in blocks(ROOT / "README.md", "text") if text.startswith("ppln/"))
    paths, folders = set(), []
    for line in listing.splitlines():
        name = line.split()[0]
        folders = folders[: (len(line) - len(line.lstrip())) // 2]
        paths.add("".join([*folders, name]))
        if name.endswith("/"):
            folders.append(name)
    return paths


def test_the_tree_is_the_package():
    listed = {path for path in tree() if path.startswith("ppln/") and not path.endswith("/")}
    built = {".so", ".pyc"}
    there = {str(p.relative_to(ROOT)) for p in PACKAGE.rglob("*") if p.is_file() and p.suffix not in built}
    assert listed == there
    others = ("docs/*.md", "examples/*.py", "benchmarks/*.py")
    assert {str(path.relative_to(ROOT)) for of in others for path in ROOT.glob(of)} <= tree()


def test_other_files_in_the_tree_exist():
    assert [path for path in tree() if not path.endswith("/") and not (ROOT / path).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page: Path):
    for target in re.findall(r"\]\(([^)#]*)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


# Import rules.


def rules() -> dict[str, set[str]]:
    """The table of docs/architecture.md: a room -> the rooms it may import from."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = page.split("| room | may import from ppln |\n| --- | --- |\n")[1].split("\n\n")[0]
    allowed = {}
    for row in rows.splitlines():
        names, others = row.strip("|").split("|")
        for name in names.split(","):
            allowed[name.strip(" `")] = {other.strip() for other in others.split(",")} - {"nothing"}
    return allowed


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Rooms that a file imports from, wherever in it; "all" for `import ppln` itself."""
    found = set()
    package = ["ppln", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"ppln.{alias.name}" for alias in node.names] if module == "ppln" else [module]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "ppln" and parts[1:] != ["__version__"]:
                found.add(parts[1] if len(parts) > 1 else "all")
    return found


SOURCES = sorted(PACKAGE.rglob("*.py"))


def test_every_room_has_a_rule():
    assert set(rules()) == {room(path) for path in SOURCES} - {"__init__"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_keep_the_rules(path: Path):
    if path == PACKAGE / "__init__.py":
        return  # it names what the rooms offer
    allowed = rules()[room(path)]
    assert "all" in allowed or imports(path) <= allowed | {room(path)}


def test_only_the_command_line_imports_studies():
    """And so what else there is can be read without them."""
    assert {room(path) for path in SOURCES if "study" in imports(path)} == {"study"}
    assert "study.command" in {entry.room for entry in _COMMANDS.values()}  # imported when it is called


def test_imports_are_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    path = tmp_path / "nn" / "a.py"
    path.parent.mkdir()
    for text, want in {
        "import ppln": {"all"},
        "import torch, ppln.models.zoo as z": {"models"},
        "from ppln import functional, convert": {"functional", "convert"},
        "from ppln.functional import cpu": {"functional"},
        "def f():\n    from ..models import zoo": {"models"},
        "from .. import models": {"models"},
        "from . import layers\nfrom .layers import time": {"nn"},
        "import pplnet\nfrom torch import nn\nfrom ppln import __version__": set(),
    }.items():
        path.write_text(text)
        assert imports(path) == want, text


def test_a_class_name_means_one_thing():
    """In the whole package: a reader who meets it again has not to ask which."""
    found: dict[str, set[str]] = {}
    for path in SOURCES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, set()).add(str(path.relative_to(PACKAGE)))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}
