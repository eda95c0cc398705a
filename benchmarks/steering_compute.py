"""Error against compute, of the rows of a study of steering: GFLOP and milliseconds an angle, and a picture.

    python benchmarks/steering_compute.py steering out/compute.json --picture out/compute.png
    python benchmarks/steering_compute.py steering-donkey out/compute.json --size 60 80

Windows of ten rows, one at a time, at ten times each. Multiplications and additions are those of convolutions
and linear layers, by torch's own count; milliseconds are medians of rounds in which all take turns. Errors
are those of benchmarks/results/STUDY/study.json, means over seeds; rows without results are left out.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from ppln.engine import provenance
from ppln.models import create_model
from ppln.protocols import ROWS
from ppln.study import STUDIES, portions, tables
from ppln.study.rows import Row

RESULTS = Path(__file__).parent / "results"
AS_LONG = ("-frames", "-events", "-every-2")  # rows that compute what others do, but for their inputs


def angles_of(row: Row, size: list[int], device: torch.device) -> Any:
    """A function that predicts the ten angles of a window."""
    net = create_model(row.model, **dict(row.options)).to(device).eval()
    x = torch.rand(1, getattr(net, "in_channels", 2 * ROWS), *size, device=device)
    t = torch.linspace(0, 1, ROWS, device=device)[None]
    if row.model == "steering-hu":  # a pass for every row
        x, t = x.expand(ROWS, *x.shape[1:]), t[0]

    def predict() -> torch.Tensor:
        with torch.no_grad():
            return net(x, t)

    return predict


def measured(
    rows: list[Row], size: list[int], rounds: int, device: torch.device
) -> dict[str, dict[str, float]]:
    calls = {row.key: angles_of(row, size, device) for row in rows}
    found: dict[str, dict[str, float]] = {}
    for key, call in calls.items():
        with FlopCounterMode(display=False) as counter:
            call()
        found[key] = {"gflop": counter.get_total_flops() / ROWS / 1e9}
    seconds: dict[str, list[float]] = {key: [] for key in calls}
    for _ in range(rounds):
        for key, call in calls.items():
            start = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds[key].append(time.perf_counter() - start)
    for key, values in seconds.items():
        found[key]["ms"] = 1e3 * statistics.median(values) / ROWS
    return found


def draw(path: Path, study: Any, found: dict[str, dict[str, float]], where: str) -> None:
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True, layout="constrained")
    for axis, name, label in zip(
        axes, ("gflop", "ms"), ("GFLOP an angle", f"ms an angle, {where}"), strict=True
    ):
        for key, of in found.items():
            colour = "tab:orange" if "ppln" in study.row(key).model else "tab:blue"
            axis.plot(of[name], of["rmse_deg"], "o", color=colour)
            axis.annotate(key, (of[name], of["rmse_deg"]), (4, 4), textcoords="offset points", fontsize=8)
        axis.set_xscale("log")
        axis.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("{x:g}")
        axis.set_xlabel(label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("RMSE in degrees, mean over seeds")
    figure.suptitle(f"{study.title}: orange with PP layers, blue without")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main(study: str, out: Path, picture: Path | None, size: list[int], rounds: int) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    of = STUDIES[study]
    results = portions.read(RESULTS / study / "study.json")["results"]
    errors = {key: -tables.mean_of(of, mine) for key, mine in tables.grouped(of, results).items()}
    rows = [row for row in of.rows if row.key in errors and not row.key.endswith(AS_LONG)]
    found = measured(rows, size, rounds, device)
    for key, values in found.items():
        values["rmse_deg"] = errors[key]
        print(f"{key:24}{values['gflop']:8.3f} GFLOP{values['ms']:8.2f} ms{values['rmse_deg']:8.2f} degrees")
    where = (
        torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, threads: {torch.get_num_threads()}"
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    about = provenance.about(command=False)
    told = {"study": study, "size": size, "on": where, "about": about, "rows": found}
    out.write_text(json.dumps(told, indent=1, default=str) + "\n")
    if picture is not None:
        draw(picture, of, found, where)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("study", choices=[name for name in STUDIES if name.startswith("steering")])
    parser.add_argument("out", type=Path)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--size", type=int, nargs=2, default=[64, 86], metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--rounds", type=int, default=20)
    main(**vars(parser.parse_args()))
