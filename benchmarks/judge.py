"""How real do `people` look to a network that knows only real recordings, that of DHP19's makers?

    python benchmarks/judge.py benchmarks/results/judge.json --network DHP_CNN.model --motions cmu_bvh.zip \\
        --pictures out/judge --before benchmarks/results/judge-before.json --page docs/realism-people.md

error_px    from where the network sees a joint to where it is, in the picture; of joints that lie in it
away_px     median of (column, row) of that: what all are off by is a convention, or a fault of the body
confidence  the largest value of a heat map; the network was trained towards 1
nearest     the joint of ours that an output is nearest to, by the median over frames
active      share of an event frame's pixels that have an event; value: mean of these; full: share at 1
train: people that `people` was made to look real with; test: others. Nothing learns from the answers.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ppln.datasets.source import PoseSample
from ppln.datasets.synthetic.people.movements import MOVEMENTS
from ppln.engine import provenance
from ppln.image_files import png
from ppln.markdown import grid
from ppln.protocols import CAMERAS, CONFIDENCE, EVENT_FRAMES, JOINT_NAMES
from ppln.tasks import Batch, Pose
from ppln.tasks.dhp19_network import read_dhp19_network
from ppln.tasks.pose import peaks

ROWS = torch.arange(0, EVENT_FRAMES, 3)  # of a sample's frames; those between are much like them
QUANTILES = (0.05, 0.5, 0.95)
AT_ONCE = 4  # samples


def ask(network: nn.Module, samples: PoseSample, task: Pose) -> tuple[Tensor, Tensor, Batch]:
    """-> heat maps [B, T, V, J, H, W], the true pixels [B, T, V, J, 2], and what was asked"""
    true = samples.joints_px.transpose(1, 2)[:, ROWS]
    times = torch.linspace(0, 1, EVENT_FRAMES)[ROWS].expand(len(true), -1)
    joints = {"joints_px": true, "joints_mm": samples.joints_mm[:, ROWS]}
    batch = Batch(samples.dvs, times, torch.empty(0), joints)
    return task.predict(network, batch), true, batch


def inside(places: Tensor, task: Pose) -> Tensor:
    limit = torch.tensor([task.width, task.height]) - 0.5
    return ((places > -0.5) & (places < limit)).all(-1)


def middle(values: NDArray) -> dict[str, float]:
    return {"median": float(np.nanmedian(values)), "mean": float(np.nanmean(values))}


@torch.no_grad()
def judge(network: nn.Module, task: Pose, split: str, count: int, pictures: Path | None) -> dict[str, Any]:
    source = task.source(split)
    found, true, confidence, frames, subjects, movements = ([] for _ in range(6))
    rows: list[dict[str, Tensor]] = []
    for first in range(0, count, AT_ONCE):
        samples = source.batch(range(first, min(first + AT_ONCE, count)))
        maps, places, batch = ask(network, samples, task)
        pixels, sure = peaks(maps)
        rows.append(task.judge(maps, batch))
        found.append(pixels)
        true.append(places)
        confidence.append(sure)
        frames.append(samples.dvs[:, :, ROWS].transpose(1, 2))
        subjects.append(samples.subject)
        movements.append(samples.movement)
        if pictures:
            (pictures / f"{split}-{first:03}.png").write_bytes(png(task.picture(maps, batch)))
    places, seen = torch.cat(true).double(), torch.cat(found)
    away = torch.where(inside(places, task)[..., None], seen - places, torch.nan)
    error = away.norm(dim=-1).numpy()  # [B, T, V, J]
    certain, dvs = torch.cat(confidence).numpy(), torch.cat(frames)
    who, what = torch.cat(subjects).numpy(), torch.cat(movements).numpy()
    between = (seen[..., :, None, :] - places[..., None, :, :]).norm(dim=-1).flatten(0, 2).median(0).values
    active = (dvs > 0).double().mean((-2, -1)).flatten().numpy()
    columns = {key: torch.cat([row[key] for row in rows]).double().numpy() for key in rows[0]}
    return {
        "samples": count,
        "error_px": middle(error),
        "error_px_camera": {str(n): middle(error[:, :, v]) for v, n in enumerate(CAMERAS)},
        "error_px_joint": {
            name: {str(n): middle(error[:, :, v, j]) for v, n in enumerate(CAMERAS)}
            for j, name in enumerate(JOINT_NAMES)
        },
        "away_px": {
            name: {
                str(n): np.nanmedian(away[:, :, v, j].flatten(0, 1).numpy(), 0).tolist()
                for v, n in enumerate(CAMERAS)
            }
            for j, name in enumerate(JOINT_NAMES)
        },
        "error_px_subject": {str(n): middle(error[who == n]) for n in np.unique(who)},
        "error_px_movement": {
            MOVEMENTS[n] if n >= 0 else "not known": middle(error[what == n])
            | {"samples": int((what == n).sum())}
            for n in np.unique(what)
        },
        "error_px_sure": middle(error[certain > CONFIDENCE]),
        "sure": float((certain > CONFIDENCE).mean()),
        "error_mm": task.summarize(columns)["mpjpe_mm"],
        "confidence": {name: float(np.median(certain[..., j])) for j, name in enumerate(JOINT_NAMES)},
        "confidence_all": float(np.median(certain)),
        "nearest": {name: JOINT_NAMES[int(between[j].argmin())] for j, name in enumerate(JOINT_NAMES)},
        "active": np.quantile(active, QUANTILES).tolist(),
        "value": float(dvs[dvs > 0].double().mean()),
        "full": float((dvs[dvs > 0] == 1).double().mean()),
    }


def page(before: dict[str, Any], after: dict[str, Any]) -> str:
    lines = [
        "# People beside real recordings",
        "",
        "Made by `benchmarks/judge.py`, which says how each is measured. `people` are our synthetic people",
        "([data](data.md)); they move as real persons did, in recordings of motion by CMU. The network that",
        "DHP19's makers trained on recordings of real people looks for 13 joints in them: its error, in",
        "pixels of 260 x 344, tells how real they look to it. On DHP19's own test set its mean is 7.5.",
        "",
        "*Before*: people turned by any angle, labelled in the middle of joints. *Now*: they look where",
        "DHP19's do, and labels are where its markers are; forearms and feet have their whole length.",
        "Where a marker is on its part of the body was chosen, among places on the skin, by where the",
        "network sees it on `train` people. Those of `test` were judged once, at the end. No network was",
        "trained on its answers.",
    ]
    for split, words in (
        ("test", "People it was not tuned with (`test`)"),
        ("train", "People it was tuned with (`train`)"),
    ):
        then, now = before[split], after[split]
        head = ["", *(f"camera {n}, {when}" for n in CAMERAS for when in ("before", "now"))]
        rows = [head]
        for name in (*JOINT_NAMES, "all"):
            cells = []
            for number in map(str, CAMERAS):
                for values in (then, now):
                    of = values["error_px_camera"] if name == "all" else values["error_px_joint"][name]
                    cells.append("{median:.1f} ({mean:.1f})".format(**of[number]))
            rows.append([name, *cells])
        lines += ["", f"## {words}: error in pixels, median (mean)", "", grid(rows)]
        told = [["", "before", "now"]]
        told += [[word, *(tell(values) for values in (then, now))] for word, tell in TOLD.items()]
        lines += ["", grid(told)]
    rows = [["", *(f"{split}: samples, median (mean)" for split in after)]]
    for name in sorted({name for values in after.values() for name in values["error_px_movement"]}):
        of = [values["error_px_movement"].get(name) for values in after.values()]
        rows.append([name, *("{samples}, {median:.1f} ({mean:.1f})".format(**v) if v else "" for v in of)])
    return "\n".join([*lines, "", "## By movement: error in pixels", "", grid(rows)]) + "\n"


TOLD: dict[str, Callable[[dict[str, Any]], str]] = {
    "all joints: median (mean), px": lambda v: "{median:.1f} ({mean:.1f})".format(**v["error_px"]),
    "joints it is sure of (above 0.3): share": lambda v: f"{v['sure']:.2f}",
    "median (mean) of these, px": lambda v: "{median:.1f} ({mean:.1f})".format(**v["error_px_sure"]),
    "in space: mean, mm": lambda v: f"{v['error_mm']:.0f}",
    "median confidence": lambda v: f"{v['confidence_all']:.2f}",
    "heat maps that are nearest to the joint of their name": lambda v: (
        f"{sum(ours == name for name, ours in v['nearest'].items())} of {len(v['nearest'])}"
    ),
    "pixels of an event frame with events, 5 / 50 / 95 % quantiles": lambda v: " / ".join(
        f"{a:.1%}" for a in v["active"]
    ),
    "mean value of these": lambda v: f"{v['value']:.2f}",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--network", type=Path, required=True)
    parser.add_argument("--motions", type=Path, required=True)
    parser.add_argument("--splits", nargs="+", default=["train", "test"])
    parser.add_argument("--samples", type=int, default=48)
    parser.add_argument("--pictures", type=Path, help="a folder for pictures of its joints over ours")
    parser.add_argument("--before", type=Path, help="results to compare with, on the page")
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    if given.pictures:
        given.pictures.mkdir(parents=True, exist_ok=True)
    task = Pose(motions=given.motions, train_samples=given.samples, test_samples=given.samples)
    network = read_dhp19_network(given.network)
    found = {split: judge(network, task, split, given.samples, given.pictures) for split in given.splits}
    for split, values in found.items():
        print(split, values["error_px"], "confidence", round(values["confidence_all"], 2), values["nearest"])
    content = {"about": provenance.about(command=False), "found": found}
    given.out.write_text(json.dumps(content, indent=1) + "\n")
    if given.page and given.before:
        given.page.write_text(page(json.loads(given.before.read_text())["found"], found))


if __name__ == "__main__":
    main()
