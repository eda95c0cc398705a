"""Error against compute, of the rows of a study of steering or pose: GFLOP and time of an angle or a window.

    OMP_NUM_THREADS=1 python benchmarks/compute.py steering-donkey --size 60 80 \\
        benchmarks/results/compute_steering_cpu.json --picture docs/figures/compute-steering.png
    python benchmarks/compute.py steering out/compute.json
    OMP_NUM_THREADS=2 python benchmarks/compute.py pose benchmarks/results/pose_cpu.json --size 260 344 \\
        --rounds 9 --rows ppln ppln-released calabrese calabrese-mod calabrese-5 plain-t around once \\
        once-late frames once-plain-t once-late-plain-t frames-plain-t

One window at a time, at ten times each: ten rows of a drive, or ten event frames of two cameras. An angle of
steering costs a tenth of a window.
Multiplications and additions are those of convolutions and linear layers, by torch's own count; milliseconds
are medians of rounds in which all take turns, ratios (to the first row) those of each round; on a CPU, of the
processor's time: others may use it, too. On a GPU in bf16. Errors are those of
benchmarks/results/STUDY/study.json, means over seeds; of rows without these, there is no picture.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from ppln.engine import provenance
from ppln.models import create_model
from ppln.study import STUDIES, portions, tables
from ppln.study.rows import Row, Study

RESULTS = Path(__file__).parent / "results"
TIMES = 10
IMAGES = {"steering": 1, "pose": 2}  # of a window
COUNTED = {"steering": ("an angle", TIMES), "pose": ("a window", 1)}  # and how many of them a window has
ALONE = ("steering-hu", "pose-calabrese")  # which see one time only: a pass for each
AS_LONG = ("-frames", "-events", "-degrees", "-every-2", "-between")  # rows that compute what others do


def window_of(row: Row, size: Sequence[int], device: torch.device) -> Callable[[], Any]:
    """A function that predicts all of a window."""
    net: Any = create_model(row.model, **dict(row.options)).to(device).eval()
    images = IMAGES[row.model.partition("-")[0]]
    x = torch.rand(images, net.in_channels, *size, device=device)
    t = torch.linspace(0, 1, TIMES, device=device).expand(images, TIMES).contiguous()
    if row.model in ALONE:
        x, t = x.repeat_interleave(TIMES, 0), t.flatten()

    def predict() -> Any:
        with (
            torch.inference_mode(),
            torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"),
        ):
            return net(x, t)

    return predict


def measured(
    rows: Sequence[Row], size: Sequence[int], rounds: int, device: torch.device
) -> dict[str, dict[str, float]]:
    calls = {row.key: window_of(row, size, device) for row in rows}
    found: dict[str, dict[str, float]] = {}
    for key, call in calls.items():
        with FlopCounterMode(display=False) as counter:
            call()
        found[key] = {"gflop": counter.get_total_flops() / 1e9}
    took: dict[str, list[tuple[float, float]]] = {key: [] for key in calls}  # seconds, and the processor's
    for _ in range(rounds):
        for key, call in calls.items():
            start = time.perf_counter(), time.process_time()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize()
            took[key].append((time.perf_counter() - start[0], time.process_time() - start[1]))
    which = 0 if device.type == "cuda" else 1
    first = [each[which] for each in took[next(iter(calls))]]
    for key, pairs in took.items():
        seconds, processor = zip(*pairs, strict=True)
        ratios = (pair[which] / of for pair, of in zip(pairs, first, strict=True))
        found[key]["ms"] = 1e3 * statistics.median(seconds)
        found[key]["cpu_ms"] = 1e3 * statistics.median(processor)
        found[key]["times_the_first"] = statistics.median(ratios)
    return found


def each(study: Study, values: dict[str, float]) -> dict[str, float]:
    """What was measured of a window, of each that is counted."""
    what, count = COUNTED[study.task]
    if count == 1:
        return values
    more = {f"{name}_{what.replace(' ', '_')}": values[name] / count for name in ("gflop", "ms", "cpu_ms")}
    return {**values, **more}


def draw(path: Path, study: Study, found: dict[str, dict[str, float]], where: str, on_cpu: bool) -> None:
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator

    what, count = COUNTED[study.task]
    time_name, time_unit = ("cpu_ms", "ms of the processor") if on_cpu else ("ms", "ms")
    labels = f"GFLOP {what}", f"{time_unit} {what}, {where}"
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True, layout="constrained")
    for axis, name, label in zip(axes, ("gflop", time_name), labels, strict=True):
        places = {}
        for key, of in found.items():
            colour = "tab:orange" if "ppln" in study.row(key).model else "tab:blue"
            places[key if of["seeds"] > 1 else f"{key} (one seed)"] = of[name] / count, of[study.metric]
            axis.plot(of[name] / count, of[study.metric], "o", color=colour)
        axis.set(xscale="log", yscale="log")
        axis.margins(0.12)
        name_points(axis, places)
        axis.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("{x:g}")
        axis.yaxis.set_minor_locator(LogLocator(subs=range(2, 10)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("{x:g}")
        axis.set_xlabel(label)
        axis.grid(alpha=0.3, which="both")
    axes[0].set_ylabel(
        ", ".join(filter(None, [study.units or study.metrics[study.metric].title, "mean of seeds"]))
    )
    figure.suptitle(f"{study.title}: orange with PP layers, blue without")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def name_points(axis: Any, places: dict[str, tuple[float, float]]) -> None:
    """Names to the right of points, the higher the point the higher, none over another."""
    taken: list[tuple[float, float]] = []
    for text, at in sorted(places.items(), key=lambda item: item[1][1]):
        x, y = axis.transData.transform(at)
        higher = y
        while any(abs(higher - other) < 16 and abs(x - beside) < 150 for beside, other in taken):
            higher += 2
        taken.append((x, higher))
        axis.annotate(
            text,
            at,
            (14, 0.65 * (higher - y)),  # points; the rest is pixels, at 110 an inch
            textcoords="offset points",
            fontsize=8,
            verticalalignment="center",
            arrowprops={"arrowstyle": "-", "linewidth": 0.5, "color": "gray"},
        )


def errors(study: Study) -> dict[str, dict[str, float]]:
    """The study's first metric by row, and of how many seeds, as far as there are results."""
    file = RESULTS / study.name / "study.json"
    if not file.exists():
        return {}
    sign = -1 if study.metrics[study.metric].better == "lower" else 1
    results = portions.read(file)["results"]
    return {
        key: {study.metric: sign * tables.mean_of(study, mine), "seeds": len(mine)}
        for key, mine in tables.grouped(study, results).items()
    }


def main(
    study: str, out: Path, picture: Path | None, size: list[int], rounds: int, rows: list[str] | None
) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    of = STUDIES[study]
    known = errors(of)
    if picture is not None and not known:
        raise SystemExit(f"there are no results of the study {study} to draw; leave out --picture")
    keys = rows or [row.key for row in of.rows if row.key in known or not known]
    found = measured([of.row(key) for key in keys if rows or not key.endswith(AS_LONG)], size, rounds, device)
    found = {key: {**each(of, values), **known.get(key, {})} for key, values in found.items()}
    for key, values in found.items():
        line = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        print(f"{key:24}{line}")
    where = (
        torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, threads: {torch.get_num_threads()}"
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    about = provenance.about(command=False)
    told = {"study": study, "size": size, "times": TIMES, "on": where, "about": about, "rows": found}
    out.write_text(json.dumps(told, indent=1, default=str) + "\n")
    if picture is not None:
        drawn = {key: values for key, values in found.items() if key in known}
        draw(picture, of, drawn, where, on_cpu=device.type == "cpu")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", choices=[name for name, study in STUDIES.items() if study.task in IMAGES])
    parser.add_argument("out", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--size", type=int, nargs=2, default=[64, 86], metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rows", nargs="+")
    main(**vars(parser.parse_args()))
