"""Write recordings to try `ppln pose` on: a synthetic person, seen by cameras 2 and 3 of DHP19.

No network was trained on it. They have events, pictures, and the true joints, so that the command tells its
error. Four seconds take some minutes to make:

    python examples/pose.py --out out --person 3 --seconds 4
    ppln pose out/camera2.h5 out/camera3.h5 -o out/joints.mp4 --network runs/pose
"""

import argparse
import json
import sys
from pathlib import Path

from ppln.datasets.synthetic.people import People
from ppln.events.io import native
from ppln.protocols import CAMERAS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for camera2.h5 and camera3.h5")
    parser.add_argument("--person", type=int, default=0, help="number of the person, from 0")
    parser.add_argument("--seconds", type=float, default=4, help="how long they are")
    parser.add_argument("--height", type=int, default=260, help="of the cameras, in pixels")
    parser.add_argument("--motions", type=Path, help="recorded motions, a folder or zip of BVH files")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    size = args.height, round(args.height * 346 / 260)
    people = People("test", size=size, cameras=CAMERAS, motions=args.motions, length=args.person + 1)
    print(f"writing recordings to {args.out}; four seconds take some minutes", file=sys.stderr)
    report = {}
    for camera in CAMERAS:
        recording = people.recording(args.person, camera=camera, seconds=args.seconds)
        file = args.out / f"camera{camera}.h5"
        counts = native.write_recording(recording, file, overwrite=True)
        report[file.name] = {"frames": counts.frames, "events": counts.events}
    (args.out / "pose.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
