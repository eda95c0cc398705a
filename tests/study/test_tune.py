"""The search of learning rates: what is tried, what is taken, and what is not tried again."""

import json
import sys
from dataclasses import replace

import pytest
from line import register
from test_reproduce import TINY

from ppln import cli, tasks
from ppln.engine import provenance
from ppln.models import networks
from ppln.study import STUDIES, tune
from ppln.study.budget import Reproduce
from ppln.study.rows import Search

SEARCHED = replace(TINY, search=Search(("small",), rates=(1e-3, 1e-2, 1e-1), steps=4, close=0.0))


@pytest.fixture(autouse=True)
def line(monkeypatch):
    monkeypatch.setattr(tasks, "TASKS", dict(tasks.TASKS))
    register()
    monkeypatch.setattr(provenance, "_git", lambda package: None)
    yield
    del networks.NETWORKS["line-net"]


def test_the_choice_of_a_rate():
    """The better of the best rate and the lowest that is close, where both are known in full."""
    tried = [
        {"learning_rate": rate, "edges": edges, "psnr": psnr}
        for rate, edges, psnr in [(1, 0, 30.0), (3, 0, 30.2), (9, 0, 20.0), (3, 2, 29.9), (0.3, 2, 29.9)]
    ]
    for full, rate in [
        ({}, 1), ({3: 33.0}, 1), ({1: 32.0, 3: 33.0}, 3), ({1: 33.0, 3: 32.0}, 1), ({1: 32.0, 9: 33.0}, 1)
    ]:  # fmt: skip
        want = {"learning_rate": rate, "edges": 0, "psnr": 30.2 if rate == 3 else 30.0}
        assert tune.choice(STUDIES["deblur"], tried, full) == want


def test_of_a_metric_that_is_better_if_lower():
    tried = [{"learning_rate": rate, "rmse": rmse} for rate, rmse in [(1, 0.5), (3, 0.2), (9, None)]]
    study = replace(SEARCHED, search=replace(SEARCHED.search, close=0.1))
    assert tune.choice(study, tried, {})["learning_rate"] == 3
    study = replace(SEARCHED, search=replace(SEARCHED.search, close=0.3))
    assert tune.choice(study, tried, {})["learning_rate"] == 1
    assert tune.choice(study, tried, {1: 0.4, 3: 0.3})["learning_rate"] == 3


def trials(psnr):
    """What is tried, in order, where a function of the rate and the loss says what comes out."""
    tried = []
    while (following := tune.next_trial(STUDIES["deblur"], tried)) is not None:
        rate, task = following
        value = psnr(rate, task["edges"])
        tried.append({"learning_rate": rate, **task, "psnr": value})
    return [(one["learning_rate"], one["edges"]) for one in tried]


def test_rates_go_on_while_an_end_is_best():
    inside = trials(lambda rate, edges: -abs(rate - 3e-3))
    assert inside == [(1e-3, 0), (3e-3, 0), (1e-2, 0), (3e-3, 2)]
    high = trials(lambda rate, edges: -abs(rate - 0.09))
    assert [edges for _, edges in high] == [0, 0, 0, 0, 0, 0, 2]
    assert [rate for rate, _ in high] == pytest.approx([1e-3, 3e-3, 1e-2, 0.03, 0.09, 0.27, 0.09])
    low = trials(lambda rate, edges: -abs(rate - 1e-3))
    assert [edges for _, edges in low] == [0, 0, 0, 0, 2]
    assert [rate for rate, _ in low] == pytest.approx([1e-3, 3e-3, 1e-2, 1e-3 / 3, 1e-3])
    assert len(trials(lambda rate, edges: rate)) == 3 + tune.MORE + 1  # it ends
    assert len(trials(lambda rate, edges: None)) == 5


def test_a_search_goes_on_where_it_stopped(tmp_path):
    said: list[str] = []
    how = Reproduce(tmp_path, device="cpu", tune=True)
    taken = tune.tune(SEARCHED, how, said.append)
    content = json.loads((tmp_path / "tune.json").read_bytes())
    tried = content["tried"]["small"]
    assert [one["learning_rate"] for one in tried[:3]] == [1e-3, 1e-2, 1e-1]
    assert content["budget"]["optimizer"]["steps"] == 4
    assert min(one["rmse"] for one in tried) == taken["small"]["rmse"]
    assert len({one["rmse"] for one in tried}) == len(tried)
    assert len(said) == len(tried)

    (tmp_path / "tune.json").write_text(json.dumps({**content, "tried": {"small": tried[:2]}}))
    again: list[str] = []
    assert tune.tune(SEARCHED, how, again.append)["small"]["rmse"] == taken["small"]["rmse"]
    assert len(again) == len(tried) - 2
    with pytest.raises(ValueError, match=r"tune.json: .* other settings, optimizer.steps 4 and 5"):
        tune.tune(SEARCHED, replace(how, steps=5), print)


def test_from_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(STUDIES, "line", SEARCHED)
    words = ["ppln", "reproduce", "line", "--tune", "--device", "cpu", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    cli.main()
    said = capsys.readouterr().out.splitlines()
    assert any(text.startswith("small: learning_rate 0.001, rmse ") for text in said)
    assert said[-2].startswith("small: take learning_rate ")
    assert said[-1] == f"wrote {tmp_path / 'tune.json'}"
    monkeypatch.setattr(sys, "argv", [*words, "--seeds", "1"])
    with pytest.raises(SystemExit, match="seeds is 1, which --tune has no use for"):
        cli.main()


def test_no_time_tries_nothing(tmp_path):
    assert tune.tune(SEARCHED, Reproduce(tmp_path, device="cpu", minutes=0), print) == {}
    assert not (tmp_path / "tune.json").exists()


def test_what_has_no_search(tmp_path):
    with pytest.raises(ValueError, match="tune: the study line has no search of learning rates"):
        tune.tune(TINY, Reproduce(tmp_path), print)
    with pytest.raises(ValueError, match="rates is small=1, which --tune has no use for; leave it out"):
        tune.tune(SEARCHED, Reproduce(tmp_path, rates=("small=1",)), print)
    with pytest.raises(ValueError, match="rows: there is no 'large'; there are small"):
        tune.tune(SEARCHED, Reproduce(tmp_path, rows=("large",)), print)
