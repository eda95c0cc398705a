"""Metadata that others may have changed is read, or refused in one line; see tampering.py."""

import numpy as np
import pytest
import tampering
from line import register, settings
from made_study import everything, put, study

import ppln
from ppln.datasets.windows import Entry, Manifest
from ppln.engine.evaluate import Evaluation, write
from ppln.engine.train import train
from ppln.models import networks, weights
from ppln.models.weights import Card, Measured
from ppln.tasks import TASKS, Steering


def made_weights(folder):
    options = {"width": 2, "channels": 2, "layers": 3}
    net = ppln.create_model("deblur-ppln-head", **options)
    card = Card("scenes", "2 steps", (Measured("psnr", 20.5, "dB", "scenes"),), date="2026-01-31")
    weights.write(folder / "weights.safetensors", net, "deblur-ppln-head", options, card)


def made_run(folder):
    register()
    try:
        train(settings(folder / "run", steps=4, ema=0.9, options={"noise": 0.1}))
    finally:
        del TASKS["line"], networks.NETWORKS["line-net"]


def made_results(folder):
    made_weights(folder)
    task, draw, names = Steering(), np.random.default_rng(0), ("error_deg", "angle_deg")
    for name in ("ours", "theirs"):
        angles = dict(zip(names, draw.normal(size=(2, 5)), strict=True))
        columns = {"night": np.arange(5) % 2, **angles, **{f"{k}2": v**2 + 1 for k, v in angles.items()}}
        columns["between_deg2"] = columns["error_deg2"]
        data = dict.fromkeys(("x_rms", "target_rms"), np.arange(1.0, 6.0))
        found = Evaluation(
            task, "test", 5, np.arange(5), data, columns, task.summarize(columns), {}, None, 0.1
        )
        about = {"model": {"name": name}, "checkpoint": {"path": name, "sha256": name}, "limit": None}
        write(folder / "evaluation" / name, found, {**about, "precision": "32"})


def made_study(folder):
    put(folder / "study.json", study(*everything()))


def made_windows(folder):
    entry = Entry("a.bag", 10, "0" * 64, 8, 9, 5, 100, 1000, "0" * 64)
    (folder / "manifest.json").write_text(Manifest("recordings", 14, {"a": entry, "b": entry}).text())


MADE = {
    "weights": made_weights,
    "header": made_weights,
    "state": made_run,
    "manifest": made_run,
    "config": lambda folder: None,
    "results": made_results,
    "study": made_study,
    "windows": made_windows,
}


@pytest.mark.parametrize("kind", tampering.KINDS)
def test_tampered_metadata(kind, tmp_path):
    MADE[kind](tmp_path)
    tampering.assert_survives(kind, tmp_path)
