import json
import subprocess
import sys
from pathlib import Path

import ppln
from ppln.engine import provenance


def test_about():
    import torch

    found = provenance.about()
    assert list(found["versions"])[:2] == ["python", "ppln"]
    assert found["versions"]["ppln"] == ppln.__version__
    assert torch.__version__.startswith(found["versions"]["torch"])  # which may lack "+cu130"
    assert found["command"] == sys.argv
    assert "command" not in provenance.about(command=False)
    assert found["cpus"] >= 1
    assert json.loads(json.dumps(found)) == found


def test_git(tmp_path):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    package = tmp_path / "ppln"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert provenance._git(package) is None
    git("init", "-q")
    assert provenance._git(package) is None  # somebody else's checkout
    git("add", "ppln")
    git("commit", "-q", "-m", "first")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a").write_text("")
    clean = provenance._git(package)
    assert len(clean["revision"]) == 40
    assert not clean["dirty"]
    (package / "new.py").write_text("")
    assert provenance._git(package) == {**clean, "dirty": True}


def test_git_is_missing(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert provenance._git(Path(provenance.__file__).parents[1]) is None


def test_imports_are_lazy():
    code = "import sys; sys.modules.update(yaml=None); import ppln.engine.stored"
    code += "; import ppln.engine.provenance as p; p.about()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(provenance.__file__).parents[2])
