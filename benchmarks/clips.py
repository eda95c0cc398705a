"""The frames that Textures takes of videos, as pictures: they are lighter to carry to another machine.

    python benchmarks/clips.py FOLDER_OF_VIDEOS video

Each video becomes a folder of its name with 8 grey PNG files. The networks and the study of docs/results.md
had their textures from such a folder, by `--textures made+video`. The videos themselves would give the same
textures, up to rounding, but in other scenes: a folder's pictures are drawn one by one.
"""

import argparse
from pathlib import Path

import torch
from PIL import Image

from ppln.datasets.synthetic.scenes.textures import VIDEOS, read_pictures
from ppln.files import make_folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("videos", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    for video in sorted(file for file in given.videos.iterdir() if file.suffix.lower() in VIDEOS):
        make_folder(given.out / video.name)
        for k, light in enumerate(read_pictures(video)):
            # As sRGB is encoded (IEC 61966-2-1); Textures decodes it.
            encoded = torch.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
            grey = (255 * encoded.clamp(0, 1)).round().to(torch.uint8)
            Image.fromarray(grey.numpy()).save(given.out / video.name / f"{k}.png")
        print(given.out / video.name)


if __name__ == "__main__":
    main()
