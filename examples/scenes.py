"""Synthetic scenes for deblurring: what a network is given (left), and what it should find.

    python examples/scenes.py --out out

writes scenes.png, a row for each scene. Frames are linear in light, and shown with an exponent of 1 / 2.2, as
photographs are. Events are those of the whole window: red where there is more light in the end, blue where
there is less.
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

from ppln.datasets.source import DeblurSample
from ppln.datasets.synthetic.scenes import Scenes


def event_picture(histogram: Tensor) -> Tensor:
    """Counts [2 bins, H, W] -> red, green, blue [H, W, 3]; a surplus of four events is the full colour."""
    balance = ((histogram[0::2].sum(0) - histogram[1::2].sum(0)) / 4).clamp(-1, 1)
    return torch.stack([1 + balance.clamp(max=0), 1 - balance.abs(), 1 - balance.clamp(min=0)], -1)


def draw(batch: DeblurSample) -> Figure:
    count, frames, height, width = batch.sharp.shape
    figure = Figure(figsize=(12.5, 2.5 * count * height / width + 0.4), layout="constrained")
    for row, sharp, blurry, histogram in zip(
        figure.subplots(count, 5, squeeze=False), batch.sharp, batch.blurry, batch.histogram, strict=True
    ):
        pictures = {
            "blurry frame": blurry[0],
            "events": event_picture(histogram),
            "sharp, t = 0": sharp[0],
            f"t = {(frames // 2) / (frames - 1):.2f}": sharp[frames // 2],
            "t = 1": sharp[-1],
        }
        for ax, (title, picture) in zip(row, pictures.items(), strict=True):
            if picture.ndim == 2:
                picture = picture ** (1 / 2.2)
            ax.imshow(picture.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            ax.set_axis_off()
            if ax in figure.axes[:5]:
                ax.set_title(title, fontsize=10)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for scenes.png")
    parser.add_argument("--split", default="train", help="train, val or test")
    parser.add_argument("--indices", type=int, nargs="+", default=[2, 4, 5, 6], help="which scenes")
    parser.add_argument("--size", type=int, nargs=2, default=(180, 240), metavar=("HEIGHT", "WIDTH"))
    parser.add_argument(
        "--textures", default="made+scikit-image", help="made, scikit-image, a folder; joined by +"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    scenes = Scenes(args.split, size=tuple(args.size), textures=args.textures)
    draw(scenes.batch(args.indices)).savefig(args.out / "scenes.png", dpi=90)


if __name__ == "__main__":
    main()
