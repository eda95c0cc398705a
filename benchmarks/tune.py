"""What suits each network of the deblurring study: learning rates, then losses, judged by validation scenes.

    python benchmarks/tune.py benchmarks/results/tune.json --textures made+video

Every network is trained for a part of the study's steps with each rate, with more while the lowest or the
highest is best; then with the other loss and the rate that was best. Rows of studies.py have what `choice`
makes of these; those that change one of these rows have its. What the file has already is not tried again.

Where a lower rate is close to the best, both are trained in full, with three seeds; study.json has those with
the better one, study-rates.json the others:

    python benchmarks/study.py OUT --minutes 9 --textures made+video --windows slider=data/slider \\
        --rows eslnet unet-14-residual --rates eslnet=1e-3 unet-14-residual=3e-3
"""

import argparse
import gc
import json
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from ppln.engine import config
from ppln.engine.budget import Reproduce, train_settings
from ppln.engine.fabric import make_fabric
from ppln.engine.feed import maker
from ppln.engine.studies import STUDIES
from ppln.engine.train import train
from ppln.engine.watch import NotFinite
from ppln.files import put_in_place

ROWS = (
    *("unet-blind", "unet-t", "unet-14", "unet-t-residual", "unet-14-residual"),
    *("ecir", "deblursr", "eslnet", "eslnet-pp"),
    *("ppln", "ppln-released", "head-plain", "head-plain-around", "head", "head-around"),
)
RATES = (1e-3, 3e-3, 1e-2)
EDGES = (0.0, 2.0)  # weights of gradients in the loss
CLOSE = 0.3  # dB
FULL = [Path(__file__).parent / "results" / name for name in ("study.json", "study-rates.json")]


def choice(tried: list[dict[str, Any]], full: dict[float, float]) -> dict[str, Any]:
    """The best loss, and its best rate or the lowest that is close: longer trainings may want lower ones.

    full: validation's PSNR by learning rate after the study's trainings; if it is known of both, it decides.
    """
    best = max(tried, key=lambda one: one["psnr"])
    close = [one for one in tried if one["edges"] == best["edges"] and one["psnr"] >= best["psnr"] - CLOSE]
    lowest = min(close, key=lambda one: one["learning_rate"])
    rates = [one["learning_rate"] for one in (lowest, best)]
    return best if all(rate in full for rate in rates) and full[rates[1]] > full[rates[0]] else lowest


def in_full(key: str) -> dict[float, float]:
    """Of a row that the study has trained, also with another rate: validation's PSNR, the mean over seeds."""
    found: dict[float, list[float]] = {}
    for file in FULL:
        for result in json.loads(file.read_text())["results"]:
            if result["row"] == key:
                rate = result["settings"]["optimizer"]["learning_rate"]
                found.setdefault(rate, []).append(result["training"]["validation"]["psnr"])
    return {rate: sum(values) / len(values) for rate, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--textures", default="made")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--samples", type=int, default=12_288)
    parser.add_argument("--precision", choices=("32", "tf32", "bf16"), default="bf16")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    how = Reproduce(
        out=folder,
        steps=given.steps,
        textures=given.textures,
        size=given.size,
        batch=given.batch,
        train_samples=given.samples,
        precision=given.precision,
    )
    rows = {row.key: row for row in STUDIES["deblur"].rows}
    found: dict[str, list[dict[str, Any]]] = {}
    budget = {
        "steps": given.steps,
        "batch": given.batch,
        "samples": given.samples,
        "size": given.size,
        "textures": given.textures,
        "precision": given.precision,
    }
    if given.out.exists():
        before = json.loads(given.out.read_text())
        if before["budget"] != budget:
            parser.error(f"{given.out} is of {before['budget']}; give another file, or the same options")
        found = before["tried"]
    about = config.about(command=False)
    make = None

    def attempt(key: str, rate: float, edges: float) -> None:
        nonlocal make
        tried = found.setdefault(key, [])
        if any((one["learning_rate"], one["edges"]) == (rate, edges) for one in tried):
            return
        row = replace(
            rows[key],
            task={**rows[key].task, "edges": edges},
            optimizer={**rows[key].optimizer, "learning_rate": rate},
        )
        settings = train_settings(STUDIES["deblur"], row, 0, how)
        device = make_fabric(settings.machine).device
        make = make or maker(settings.task.source("train"), given.batch, device, keep=True)
        shutil.rmtree(folder)
        gc.collect()  # what the last training had on the GPU is free
        start = time.perf_counter()
        try:
            psnr = train(settings, make=make).metrics["psnr"]
        except NotFinite:
            psnr = 0.0
        seconds = round(time.perf_counter() - start, 1)
        tried.append({"learning_rate": rate, "edges": edges, "psnr": psnr, "seconds": seconds})
        print(key, tried[-1], flush=True)
        content = {"about": about, "budget": budget, "tried": found}
        with put_in_place(given.out) as aside:
            aside.write_text(json.dumps(content, indent=1) + "\n")

    def best_rate(key: str) -> float:
        plain = [one for one in found[key] if one["edges"] == EDGES[0]]
        return max(plain, key=lambda one: one["psnr"])["learning_rate"]

    def extremes(key: str) -> tuple[float, float]:
        rates = [one["learning_rate"] for one in found[key] if one["edges"] == EDGES[0]]
        return min(rates), max(rates)

    for key in given.rows:
        for rate in RATES:
            attempt(key, rate, EDGES[0])
        while (rate := best_rate(key)) in (ends := extremes(key)):
            attempt(key, rate / 3 if rate == ends[0] else 3 * rate, EDGES[0])
        attempt(key, rate, EDGES[1])
        print(f"{key}: {choice(found[key], in_full(key))}", flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
