"""Write a recording to try `ppln steer` on: of a synthetic drive, or of a stretch of a Donkeycar tub.

The drive has frames, events, and the angle of the wheel; of a tub, the frames and the angle, which a person
steered, but no events. Two seconds of a drive take a minute to make, ten some minutes:

    python examples/steer.py --out out --light night --drive 3 --seconds 10
    ppln steer out/steer.h5 -o out/steer.mp4

    python examples/steer.py --out out --tub donkey_track.h5 --stretch 5
    ppln steer out/steer.h5 -o out/steer.mp4 --simulate-events
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from ppln.datasets import donkey
from ppln.datasets.source import DRIVE
from ppln.datasets.synthetic.driving import Driving
from ppln.events import Frames, Recording
from ppln.events.events import Sensor
from ppln.events.io import native
from ppln.events.recording import Signal
from ppln.events.video import grey
from ppln.image_files import read_picture


def of_drive(drive: int, light: str, seconds: float, height: int) -> Recording:
    size = (height, height * 172 // 128)
    return Driving("test", size=size, night=light, length=(drive + 1) * DRIVE).recording(drive, seconds)


def of_tub(path: Path, stretch: int, seconds: float) -> Recording:
    """From the beginning of one of its uninterrupted drives."""
    with donkey.opened_tub(path) as tub:
        found = donkey.stretches(tub)[stretch]
        t = tub.t_us[found] - tub.t_us[found[0]]
        chosen = [k for k, time_us in zip(found, t, strict=True) if time_us <= seconds * 1e6]
        pictures = [tub.picture(k) for k in chosen]
        images = np.stack([grey(path, read_picture(content, "a tub", "pillow")) for _, content in pictures])
        wheel = Signal("steering_wheel_angle", t[: len(chosen)], donkey.DEGREES * tub.wheel[chosen])
    frames = Frames(images, t[: len(chosen)])
    return Recording(
        format="donkey",
        sensor=Sensor(*images.shape[1:]),
        events=None,
        frames=frames,
        signals={wheel.name: wheel},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for steer.h5 and steer.json")
    parser.add_argument(
        "--light", choices=["day", "night"], default="day", help="of the drive: by day or at night"
    )
    parser.add_argument("--drive", type=int, default=0, help="number of the synthetic drive, from 0")
    parser.add_argument("--seconds", type=float, default=10, help="how long it is, at most")
    parser.add_argument("--height", type=int, default=128, help="of the drive's pictures, in pixels")
    parser.add_argument(
        "--tub", type=Path, help="instead of a drive: a Donkeycar tub, a folder or an HDF5 file"
    )
    parser.add_argument(
        "--stretch", type=int, default=0, help="number of the tub's part without a pause, from 0"
    )
    args = parser.parse_args()
    if args.tub is not None and not args.tub.exists():
        parser.error(f"--tub is {args.tub}, which is not there; give a tub, a folder or an HDF5 file")
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "steer.h5"
    print(f"writing {file}; ten seconds of a drive take some minutes", file=sys.stderr)
    if args.tub is None:
        recording = of_drive(args.drive, args.light, args.seconds, args.height)
    else:
        recording = of_tub(args.tub, args.stretch, args.seconds)
    counts = native.write_recording(recording, file, overwrite=True)
    angles = recording.signals["steering_wheel_angle"].values
    report = {
        "frames": counts.frames,
        "events": counts.events,
        "angle_deg": [round(float(angle), 1) for angle in (angles.min(), angles.max())],
    }
    (args.out / "steer.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
