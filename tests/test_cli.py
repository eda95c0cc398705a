"""The command line, end to end."""

import json
import sys

import pytest
import torch

from ppln.cli import main

SMALL = [
    "--device",
    "cpu",
    "--no-compile",
    "--rounds",
    "1",
    "--batch",
    "2",
    "--height",
    "32",
    "--width",
    "32",
]


def run(monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["ppln", *arguments])
    main()


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("node", {"fused node", "eager node", "released node"}),
        ("layer", {"PP layer", "PP layer, 1 time stamp", "bare coefficient convolution", "released layer"}),
        ("model", {"PPLN", "bare coefficient convolutions", "eager node", "released"}),
    ],
)
def test_bench_prints_a_table_and_writes_it(what, names, monkeypatch, tmp_path, capsys):
    out = tmp_path / "new" / "bench.json"
    more = ["--times", "2"] if what == "layer" else []
    run(monkeypatch, "bench", what, *SMALL, *more, "--channels", "4", "--out", str(out))
    result = json.loads(out.read_text())
    assert names <= result["figures"].keys()
    assert result["bench"]["what"] == what
    assert result["machine"]["torch"] == torch.__version__
    printed = capsys.readouterr().out
    for name, row in result["figures"].items():
        assert row["ms"] >= row["fastest_ms"] > 0
        assert row["peak_mib"] >= 0
        assert name in printed
    assert str(out) in printed


def test_a_fused_step_holds_less_memory_than_an_eager_one(monkeypatch, tmp_path):
    out = tmp_path / "bench.json"
    run(monkeypatch, "bench", "node", *SMALL, "--channels", "64", "--out", str(out))
    figures = json.loads(out.read_text())["figures"]
    assert figures["fused node"]["peak_mib"] < figures["eager node"]["peak_mib"] / 2


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(arguments, monkeypatch, capsys):
    run(monkeypatch, *arguments)
    assert "bench" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bnech"], "there is no command 'bnech'"),
        pytest.param(
            ["bench", "node", "--device", "cuda"],
            "torch sees no GPU",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_mistakes_are_one_line(arguments, says, monkeypatch):
    with pytest.raises(SystemExit, match=says):
        run(monkeypatch, *arguments)


def test_without_tyro_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tyro", None)
    with pytest.raises(SystemExit, match="pip install 'ppln"):
        run(monkeypatch, "bench", "node")
