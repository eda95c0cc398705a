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
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from study import STUDY, make_all, start

from ppln.engine import config
from ppln.engine.feed import Held, Make
from ppln.engine.train import train
from ppln.engine.watch import NotFinite
from ppln.files import put_in_place
from ppln.study.budget import Reproduce, train_settings

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


@dataclass
class Search:
    """Of what suits one network after the other; several can share the file, the samples and the GPU."""

    out: Path
    how: Reproduce
    about: dict[str, Any]
    budget: dict[str, Any]
    make: Make
    val: Held
    lock: Any

    def rows(self, keys: Any) -> None:
        while (key := self.take(keys)) is not None:
            for rate in RATES:
                self.attempt(key, rate, EDGES[0])
            while (rate := self.best_rate(key)) in (ends := self.extremes(key)):
                self.attempt(key, rate / 3 if rate == ends[0] else 3 * rate, EDGES[0])
            self.attempt(key, rate, EDGES[1])
            print(f"{key}: {choice(self.tried(key), in_full(key))}", flush=True)

    def take(self, keys: Any) -> str | None:
        with self.lock:
            return keys.pop(0) if len(keys) else None

    def attempt(self, key: str, rate: float, edges: float) -> None:
        if any((one["learning_rate"], one["edges"]) == (rate, edges) for one in self.tried(key)):
            return
        row = next(row for row in STUDY.rows if row.key == key)
        row = replace(
            row, task={**row.task, "edges": edges}, optimizer={**row.optimizer, "learning_rate": rate}
        )
        with tempfile.TemporaryDirectory() as folder:
            settings = train_settings(STUDY, row, 0, replace(self.how, out=Path(folder)))
            start = time.perf_counter()
            try:
                psnr = train(settings, make=self.make, val=self.val).metrics["psnr"]
            except NotFinite:
                psnr = 0.0
            seconds = round(time.perf_counter() - start, 1)
        gc.collect()
        if self.how.device == "cuda":
            torch.cuda.empty_cache()  # others need it
        one = {"learning_rate": rate, "edges": edges, "psnr": psnr, "seconds": seconds}
        print(key, one, flush=True)
        with self.lock:
            found = read(self.out)
            found.setdefault(key, []).append(one)
            content = {"about": self.about, "budget": self.budget, "tried": found}
            with put_in_place(self.out) as aside:
                aside.write_text(json.dumps(content, indent=1) + "\n")

    def tried(self, key: str) -> list[dict[str, Any]]:
        return read(self.out).get(key, [])

    def best_rate(self, key: str) -> float:
        plain = [one for one in self.tried(key) if one["edges"] == EDGES[0]]
        return max(plain, key=lambda one: one["psnr"])["learning_rate"]

    def extremes(self, key: str) -> tuple[float, float]:
        rates = [one["learning_rate"] for one in self.tried(key) if one["edges"] == EDGES[0]]
        return min(rates), max(rates)


def read(file: Path) -> dict[str, list[dict[str, Any]]]:
    return json.loads(file.read_text())["tried"] if file.exists() else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--textures", default="made")
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--samples", type=int, default=12_288)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--precision", choices=("32", "tf32", "bf16"), default="bf16")
    given = parser.parse_args()
    names = ("steps", "batch", "samples", "size", "textures", "precision")
    budget = {name: getattr(given, name) for name in names}
    if given.out.exists() and (before := json.loads(given.out.read_text())["budget"]) != budget:
        parser.error(f"{given.out} is of {before}; give another file, or the same options")
    options = {name: value for name, value in budget.items() if name != "samples"}
    how = Reproduce(device=given.device, train_samples=given.samples, **options)
    first = next(row for row in STUDY.rows if row.key == given.rows[0])
    make, val = make_all(first, how)
    mp.set_start_method("spawn")
    with mp.Manager() as manager:
        about, keys = config.about(command=False), manager.list(given.rows)
        search = Search(given.out, how, about, budget, make, val, mp.Lock())
        workers = start(search.rows, [(keys,)] * given.processes)
        for worker in workers:
            worker.join()
    if any(worker.exitcode for worker in workers):
        raise SystemExit("a process failed; what it has not tried is tried when this is run again")


if __name__ == "__main__":
    main()
