"""One person before the four cameras of DHP19: what they see, the events, the frames made of them.

The upper rows show one instant: light with the 13 joints, and the events of the 50 ms around it (red:
brighter, blue: darker). Below, camera 2 sees the motion go on. The last row has what a network is given:
frames with equal numbers of events, which last as long as they have to.

    python examples/people.py --out out
    python examples/people.py --out out --motions cmu_bvh.zip --split test --index 3
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ppln import geometry
from ppln.datasets.synthetic.people import People
from ppln.events.simulate import simulate_histogram
from ppln.protocols import BONES, JOINT_NAMES

AROUND_US = 50_000
Box = tuple[float, float, float, float]


def show(
    ax: Axes, picture: torch.Tensor, joints: torch.Tensor | None = None, zoom: Box | None = None
) -> None:
    """A picture of 0 to 1, with joints [13, 2] over it, or a part: left, right, top, bottom."""
    ax.imshow(picture.numpy(), cmap="gray", vmin=0, vmax=1)
    if joints is not None:
        for a, b in BONES:
            ax.plot(*joints[[a, b]].T, color="tab:cyan", lw=0.7, alpha=0.7)
        ax.scatter(*joints.T, s=7, color="tab:orange", zorder=3, linewidths=0)
    left, right, top, bottom = zoom or (-0.5, picture.shape[1] - 0.5, -0.5, picture.shape[0] - 0.5)
    ax.set(xticks=[], yticks=[], xlim=(left, right), ylim=(bottom, top))


def colours(counts: torch.Tensor) -> np.ndarray:
    """Positive and negative counts [2, H, W] as red and blue on white."""
    positive, negative = (counts / 3).clamp(max=1).numpy()
    return 1 - np.stack([negative, np.maximum(positive, negative), positive], -1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for people.png and people.json")
    parser.add_argument("--motions", type=Path, help="folder or zip of BVH files; without, motions are made")
    parser.add_argument("--split", default="val")
    parser.add_argument("--index", type=int, default=10, help="which sample")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    people = People(args.split, motions=args.motions)
    placement, sample = people.placement([args.index]), people[args.index]
    middle = max(int(sample.times_us[5]), AROUND_US // 2)
    times = torch.linspace(middle - AROUND_US // 2, middle + AROUND_US // 2, 13).long()
    light, joints = people.draw([args.index], times[None])
    events = simulate_histogram(light[0], times, people.camera, bins=1)
    still = geometry.project(people.cameras[:, None], joints[0, 6])  # [C, 13, 2]
    several = sample.times_us[2:10]  # where the frames that are shown begin
    motion, _ = people.draw([args.index], several[None])
    centre = float(still[1, :, 0].mean())
    zoom = (centre - 80, centre + 80, 20, 250)

    def screen(light: torch.Tensor) -> torch.Tensor:
        return light.clamp(0, 1) ** (1 / 2.2)  # linear light as a screen wants it

    figure = Figure(figsize=(13, 10.4), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=[5.1, 5.3])
    axes = upper.subplots(2, 4)
    for c in range(4):
        show(axes[0, c], screen(light[0, c, 6]), still[c])
        axes[0, c].set_title(f"camera {people.numbers[c]}", fontsize=10)
        axes[1, c].imshow(colours(events[c]))
        axes[1, c].set(xticks=[], yticks=[], xlabel=f"{int(events[c].sum()):,} events")
    axes = lower.subplots(2, 8)
    for k in range(8):
        show(axes[0, k], screen(motion[0, 1, k]), zoom=zoom)
        axes[0, k].set_title(f"{(several[k] - several[0]) / 1000:.0f} ms", fontsize=10)
        show(axes[1, k], 1 - sample.dvs[1, k + 2], zoom=zoom)
        axes[1, k].set_xlabel(f"{(sample.times_us[k + 3] - several[k]) / 1000:.0f} ms long")
    figure.savefig(args.out / "people.png", dpi=90)

    report = {
        "clip": people.clips.names[int(placement.clip)],
        "stature_mm": round(float(placement.stature)),
        "joints": list(JOINT_NAMES),
        "events_in_frame": sample.events.tolist(),
        "frame_ms": (sample.times_us.diff() / 1000).tolist(),
        "joints_px_camera_2": sample.joints_px[1, -1].round(decimals=1).tolist(),
    }
    (args.out / "people.json").write_text(json.dumps(report, indent=2) + "\n")
    total = sum(sample.events.tolist())
    print(f"{report['clip']}, {report['stature_mm']} mm tall: {total:,} events in ten frames")


if __name__ == "__main__":
    main()
