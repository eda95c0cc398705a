"""How large are the outputs of a deep stack of PP layers that nobody has trained yet?

A network trains well if its layers neither blow a signal up nor let it fade, and people who replace a
plain layer by a PP layer expect the scale they had. This script stacks 20 layers with a ReLU between,
plain and PP, both as they are made, and compares the variance of their outputs layer by layer at several
times; then that of one layer over all times. It writes variance.png and variance.json:

    python examples/variance.py --out out

What it shows: the scale is the plain layer's at every depth, except on the knots. All new layers have
theirs at the same times, i/n, and there each layer gives 1/2 + (n - 2) / (4 (n - 1)) of the variance
(n = 3: 0.625). Here biases keep that from adding up; in a stack without them it does, layer by layer.

Dimensions: B batch, T time stamps.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import torch
from matplotlib import pyplot as plt
from torch import Tensor, nn

from ppln.nn import PPConv2d, PPLinear

TIMES = [0.1, 0.5, 0.9, 1 / 3]  # the last is a knot of a new layer of three segments
SEGMENTS = [2, 3, 8]
STACKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(256, 256), lambda: PPLinear(256, 256), (16, 256)),
    "conv2d": (
        lambda: nn.Conv2d(32, 32, 3, padding=1),
        lambda: PPConv2d(32, 32, 3, padding=1),
        (2, 32, 8, 8),
    ),
}


def stack_variance(make: Callable[[], nn.Module], x: Tensor, depth: int, times: list[float]) -> Tensor:
    """Variance of the output of every layer, before its ReLU, at every time -> [depth, T].

    The mean over all initialisations is zero, so the mean square is the variance. A plain layer has one
    column, since it knows no time.
    """
    t = torch.tensor(times).repeat(len(x), 1)
    variances = []
    for _ in range(depth):
        layer = make()
        x = layer(x, t) if times else layer(x)  # PP: [B, T, ...] after the first layer
        columns = x.transpose(0, 1) if times else x[None]
        variances.append(columns.flatten(1).square().mean(1))
        x = x.relu()
    return torch.stack(variances)


def measure_stack(kind: str, depth: int, seeds: int) -> dict:
    """Variances averaged over seeds, their ratio, and the standard error of the ratio."""
    make_plain, make_pp, size = STACKS[kind]
    plain, pp = [], []
    for seed in range(seeds):
        torch.manual_seed(seed)
        x = torch.randn(size)
        plain.append(stack_variance(make_plain, x, depth, []))
        pp.append(stack_variance(make_pp, x, depth, TIMES))
    plain, pp = torch.stack(plain), torch.stack(pp)  # [seeds, depth, 1], [seeds, depth, T]
    ratio = pp.mean(0) / plain.mean(0)
    spread = [(x.std(0) / x.mean(0)).square() for x in (plain, pp)]
    error = ratio * ((spread[0] + spread[1]) / seeds).sqrt()
    return {
        "plain": plain.mean(0)[:, 0].tolist(),
        "pp": pp.mean(0).T.tolist(),  # [T][depth], as are the next two
        "ratio": ratio.T.tolist(),
        "standard_error": error.T.tolist(),
    }


def measure_one_layer(segments: int, times: Tensor) -> list[float]:
    """Variance of one wide new PP layer's output at each of `times`, over that of a plain layer."""
    torch.manual_seed(0)
    x = torch.randn(16, 256)
    y = PPLinear(256, 4096, segments=segments)(x, times.repeat(16, 1))  # [B, T, 4096]
    return (y.square().mean((0, 2)) / nn.Linear(256, 4096)(x).square().mean()).tolist()


@torch.no_grad()
def measure(depth: int, seeds: int) -> dict:
    times = torch.linspace(0, 1, 241)
    return {
        "depth": depth,
        "seeds": seeds,
        "times": TIMES,
        "stacks": {kind: measure_stack(kind, depth, seeds) for kind in STACKS},
        "one_layer": {
            "times": times.tolist(),
            "ratio": {str(n): measure_one_layer(n, times) for n in SEGMENTS},
        },
    }


def plot(result: dict, path: Path) -> None:
    figure = plt.figure(figsize=(13, 6.2), layout="constrained")
    grid = figure.add_gridspec(2, 3, width_ratios=[1, 1, 1.15])
    layers = range(1, result["depth"] + 1)
    names = [f"PP, t = {t:.1f}" for t in TIMES[:-1]] + ["PP, t = 1/3, on a knot"]
    styles = [
        dict(color=c, marker=m, ms=3.5, lw=1.2) for c, m in zip(["C0", "C1", "C2", "C3"], "os^x", strict=True)
    ]
    titles = {"linear": "PPLinear(256, 256)", "conv2d": "PPConv2d(32, 32, 3, padding=1)"}
    for row, (kind, stack) in enumerate(result["stacks"].items()):
        size, ratio = figure.add_subplot(grid[row, 0]), figure.add_subplot(grid[row, 1])
        size.semilogy(layers, stack["plain"], color="black", lw=4, alpha=0.25, label="plain layer")
        ratio.axhline(1, color="black", lw=4, alpha=0.25)
        for i, (name, style) in enumerate(zip(names, styles, strict=True)):
            size.semilogy(layers, stack["pp"][i], label=name, **style)
            ratio.plot(layers, stack["ratio"][i], **style)
            low, high = (
                [r + sign * 2 * e for r, e in zip(stack["ratio"][i], stack["standard_error"][i], strict=True)]
                for sign in (-1, 1)
            )
            ratio.fill_between(layers, low, high, color=style["color"], alpha=0.12, lw=0)
        size.set(title=titles[kind], ylabel="output variance", xlabel="layer")
        ratio.set(title="PP / plain, ± 2 standard errors", ylabel="ratio", xlabel="layer", ylim=(0, 1.6))
        for axes in (size, ratio):
            axes.set_xticks([1, *range(5, result["depth"] + 1, 5)])
            axes.grid(alpha=0.25)
        if row == 0:
            size.legend(fontsize=8)
    axes = figure.add_subplot(grid[:, 2])
    axes.axhline(1, color="black", lw=4, alpha=0.25)
    one = result["one_layer"]
    for n, color in zip(SEGMENTS, ["C4", "C5", "C6"], strict=True):
        axes.plot(one["times"], one["ratio"][str(n)], color=color, lw=1.4, label=f"{n} segments")
    axes.set(title="One new PPLinear over time", xlabel="t", ylabel="PP / plain", ylim=(0, 1.6), xlim=(0, 1))
    axes.text(
        0.5,
        0.2,
        "At a knot two segments are blended,\nand their average varies less.",
        ha="center",
        fontsize=9,
    )
    axes.legend(fontsize=8, loc="upper right")
    axes.grid(alpha=0.25)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(argv: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the figure and the numbers")
    parser.add_argument("--depth", type=int, default=20, help="layers in a stack")
    parser.add_argument("--seeds", type=int, default=24, help="initialisations to average over")
    options = parser.parse_args(argv)
    result = measure(options.depth, options.seeds)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "variance.json").write_text(json.dumps(result, indent=1))
    plot(result, options.out / "variance.png")
    return result


if __name__ == "__main__":
    torch.set_num_threads(1)  # products this small only wait for a second one
    main()
