"""What do synthetic drives look like, and are their angles those of people?

Six samples of the test drives: straight on, to the left and to the right, by day and at night. Above, the
camera's frame; below, the events of the 50 ms before it, red for brighter and blue for darker. The angle is
that of the steering wheel, positive to the left. It writes driving.png and driving.json:

    python examples/driving.py --out out

In the numbers: the spread of the angles, how many lie near zero, as most do on real roads, and how many
samples a second are made here.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from ppln.datasets.source import DRIVE, SteeringSample
from ppln.datasets.synthetic.driving import Driving

DRIVES = 40
COURSES = {"straight on": (-1.5, 1.5), "to the left": (12, 60), "to the right": (-60, -12)}  # degrees


def choose(driving: Driving, seed: int) -> list[int]:
    """A sample of each course by day, then at night, each of another drive and with a steady wheel."""
    draw = np.random.default_rng(seed)
    mean, steady = driving.angles_deg.mean(1), np.ptp(driving.angles_deg, axis=1) < 4
    night = np.repeat(driving.drives.look.night.numpy() > 0, DRIVE)
    chosen: list[int] = []
    for dark in (False, True):
        for low, high in COURSES.values():
            new = ~np.isin(np.arange(len(mean)) // DRIVE, np.array(chosen, dtype=int) // DRIVE)
            fits = np.flatnonzero((night == dark) & (mean > low) & (mean < high) & steady & new)
            chosen.append(int(draw.choice(fits)))
    return chosen


def draw(group: SteeringSample) -> Figure:
    figure = Figure(figsize=(15, 4.2), layout="constrained")
    axes = figure.subplots(2, len(group.night))
    for column, (aps, dvs, angle, speed, night) in enumerate(zip(*group, strict=True)):
        light = "night" if night else "day"
        axes[0, column].imshow(aps[-1].numpy(), cmap="gray", vmin=0, vmax=1)
        axes[0, column].set_title(f"{light}: {angle[-1]:+.0f}°, {speed[-1]:.0f} km/h", fontsize=12)
        strength = (dvs[-1].abs() / 4).clamp(max=1)
        brighter = dvs[-1] > 0
        colors = [
            torch.where(brighter, 1.0, 1 - strength),
            1 - strength,
            torch.where(brighter, 1 - strength, 1.0),
        ]
        axes[1, column].imshow(torch.stack(colors, -1).numpy())
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
    axes[0, 0].set_ylabel("frame")
    axes[1, 0].set_ylabel("events of 50 ms")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=Path("out"), help="folder for driving.png and driving.json"
    )
    parser.add_argument("--seed", type=int, default=3, help="which samples are shown")
    parser.add_argument("--height", type=int, default=128, help="of the pictures; 4 / 3 as wide, about")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    driving = Driving("test", size=(args.height, args.height * 172 // 128), length=DRIVES * DRIVE)
    angles = driving.angles_deg
    chosen = choose(driving, args.seed)
    begin = time.perf_counter()
    group = driving.batch(chosen)
    seconds = time.perf_counter() - begin
    draw(group).savefig(args.out / "driving.png", dpi=80)
    last = (v[:, -1].tolist() for v in (group.angle_deg, group.speed_kmh))
    pictures = [
        {"sample": i, "night": night, "angle_deg": round(angle, 1), "speed_kmh": round(speed, 1)}
        for i, night, angle, speed in zip(chosen, group.night.tolist(), *last, strict=True)
    ]
    report = {
        "angle_deviation_deg": round(float(angles.std()), 2),
        "share_within_5_deg": round(float((np.abs(angles) < 5).mean()), 3),
        "samples_per_s": round(len(chosen) / seconds, 2),
        "threads": torch.get_num_threads(),
        "pictures": pictures,
    }
    (args.out / "driving.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
