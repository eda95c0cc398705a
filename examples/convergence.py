"""How well does plain gradient descent find a piecewise linear function again (Theorem 3.1)?

Noisy samples of three lines with two jumps are fitted by gradient descent on slopes, intercepts and knots,
while the temperature T doubles in stages and the learning rate is a constant over T. The figure shows (a) the
largest error after the last stage against the largest noise, (b) the largest error at the samples during the
descent, (c) how far from the truth the knots may start.

Found: (a) At the samples, and in every gap between them that holds no knot, the error is about the noise or
less, as promised. Over all t it is not: a knot is known only to the gap it is in, and inside that gap the
error is as large as the jump, even without noise. (b) The last stage converges linearly down to the noise, at
about the rate of least squares; that is the learning rate times a constant, so every doubling of T halves it.
(c) Knots that start half a segment away are found; from nearly a whole segment away, which the proof allows,
they are when both start too early and are not when both start too late.

    python examples/convergence.py --out out
"""

import argparse
import json
import math
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

import ppln

# Dimensions: R runs, T time stamps. The node sees the runs as channels: [1, 3, R] -> [1, T, R].
SLOPES, INTERCEPTS, KNOTS = (0.4, -0.3, 0.4), (0.0, 0.502, -0.196), (0.36, 0.64)  # jumps of 0.25 and -0.25
SAMPLES, SEEDS = 31, 8
NOISES = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1)
STARTS = (0.05, 0.1, 0.15, 0.2, 0.25)  # distance of the knots from the truth; the shortest segment is 0.28
TEMPERATURES = (40, 80, 160, 320, 640)
# The learning rate times T. The loss has a curvature of up to 1.2 * SAMPLES: twice this diverges at T = 40.
RATE = 40 / SAMPLES
RECORD = 40  # iterations from one point of the curves to the next


def potential(theta: Tensor, t: Tensor, temperature: float | None = None) -> Tensor:
    """The node in the theorem's parameters: slopes, intercepts and inner knots [3 + 3 + 2, R] -> [T, R]."""
    slope, intercept, inner = theta.split([3, 3, 2])
    end = torch.ones_like(inner[:1])
    width = torch.cat([inner, end]) - torch.cat([0 * end, inner])
    # atanh and log undo the node's tanh and softmax: the descent is on the slopes and knots themselves.
    raw = slope.atanh()[None], intercept[None], width.log()[None]
    return ppln.piecewise_linear(*raw, t[None], temperature=temperature)[0]


def descend(theta: Tensor, t: Tensor, values: Tensor, truth: Tensor, effort: int) -> tuple[Tensor, Tensor]:
    """Gradient descent on the summed squared error -> final theta, error at the samples [points, R]."""
    theta, curve = theta.clone().requires_grad_(), []
    for temperature in TEMPERATURES:
        for i in range(effort * temperature):
            if i % RECORD == 0:
                curve.append((potential(theta.detach(), t) - truth).abs().amax(0))
            loss = (potential(theta, t, temperature) - values).square().sum()
            (gradient,) = torch.autograd.grad(loss, theta)
            with torch.no_grad():
                theta -= RATE / temperature * gradient
    return theta.detach(), torch.stack(curve)


def measure(theta: Tensor, star: Tensor, t: Tensor) -> dict[str, Tensor]:
    fine = torch.linspace(0, 1, 6001)
    error = (potential(theta, fine) - potential(star, fine)).abs()
    gap, true_gap = torch.searchsorted(t, theta[6:]), torch.searchsorted(t, star[6:].contiguous())
    holds_knot = (torch.searchsorted(t, fine)[:, None] == true_gap[:, 0]).any(1)
    return {
        "at_samples": (potential(theta, t) - potential(star, t)).abs().amax(0),
        "outside_knot_gaps": error[~holds_knot].amax(0),
        "everywhere": error.amax(0),
        "found": (gap == true_gap).all(0),  # every knot in its gap: every sample in its segment
    }


def least_squares_curvature(t: Tensor) -> float:
    """The smallest of the loss in slopes and intercepts, with every sample in its segment."""
    segment = torch.nn.functional.one_hot((t[:, None] >= torch.tensor(KNOTS)).sum(1), 3)
    design = torch.cat([segment * t[:, None], segment], 1)
    return torch.linalg.eigvalsh(2 * design.T @ design)[0].item()


def draw(report: dict, curve: Tensor, effort: int) -> Figure:
    figure = Figure(figsize=(15, 4.6), layout="constrained")
    final, descent, starts = figure.subplots(1, 3, width_ratios=[1, 1.25, 0.85])
    for name, label, style in (
        ("everywhere", "over all t", {"marker": "^", "color": "tab:red"}),
        (
            "outside_knot_gaps",
            "over all t outside the knots' gaps",
            {"s": 50, "fc": "none", "ec": "tab:blue"},
        ),
        ("at_samples", "at the samples", {"s": 12, "color": "navy"}),
    ):
        x, y = zip(*((n, y) for n in NOISES[1:] for y in report["noise"][str(n)][name]), strict=True)
        final.scatter(x, y, label=label, **style)
    final.plot(NOISES[1:], NOISES[1:], color="black", lw=1, label="error = noise")
    final.set(
        xscale="log", yscale="log", xlabel="largest noise", ylabel="largest error", title="(a) final error"
    )
    final.legend(loc="lower right", fontsize=9)

    colors = ("black", "navy", "tab:blue", "tab:green", "tab:orange", "tab:red")
    for noise, line, color in zip(NOISES, curve.T, colors, strict=False):
        descent.plot(torch.arange(len(line)) * RECORD, line, color=color, label=f"noise {noise:g}")
    for stage, temperature in enumerate(TEMPERATURES):
        first = effort * sum(TEMPERATURES[:stage])
        descent.axvline(first, color="gray", ls=":", lw=1)
        descent.text(first + 60, 0.9, f"T = {temperature}", fontsize=8, rotation=90, va="top", color="gray")
    descent.set(
        yscale="log", ylim=(None, 1), xlabel="iteration", title="(b) error at the samples (median of 8 runs)"
    )
    descent.legend(loc="lower left", fontsize=9)

    places = torch.arange(len(STARTS))
    for side, shift, color in (("too early", -0.2, "tab:blue"), ("too late", 0.2, "tab:orange")):
        starts.bar(places + shift, [x[side] for x in report["start"].values()], 0.36, color=color, label=side)
    starts.set_xticks(places, [f"{x:g}" for x in STARTS])
    starts.set(title="(c) share of runs that find both knots", ylim=(0, 1.3), yticks=(0, 0.25, 0.5, 0.75, 1))
    starts.set(xlabel="distance of both knots at the start\n(the shortest segment: 0.28)")
    starts.legend(loc="upper right", ncols=2, fontsize=9)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the figure and the numbers")
    parser.add_argument("--effort", type=int, default=12, help="iterations of a stage, over its temperature")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    # SEEDS runs for each noise, then for each start; in half of them the knots start early, in half late.
    cases = [(noise, STARTS[0]) for noise in NOISES] + [(0.01, start) for start in STARTS]
    noise, start = torch.tensor(cases).repeat_interleave(SEEDS, 0).T
    side = torch.tensor([-1.0, 1.0]).repeat_interleave(SEEDS // 2).repeat(len(cases))
    t = torch.linspace(0, 1, SAMPLES)
    star = torch.tensor([*SLOPES, *INTERCEPTS, *KNOTS])[:, None].expand(-1, len(noise))
    theta = star + 0.05 * (2 * torch.rand(star.shape) - 1)
    theta[6:] = star[6:] + side * start
    truth, psi = potential(star, t), 2 * torch.rand(SAMPLES, len(noise)) - 1

    theta, curve = descend(theta, t, truth + noise * psi / psi.abs().amax(0), truth, args.effort)
    curve = curve.unflatten(1, (-1, SEEDS)).median(2).values  # [points, cases]
    result = {name: x.double().view(-1, SEEDS) for name, x in measure(theta, star, t).items()}
    found = result["found"][len(NOISES) :].view(-1, 2, SEEDS // 2).mean(2).tolist()
    last = args.effort * TEMPERATURES[-1]
    report = {
        "noise": {str(n): {k: x[i].tolist() for k, x in result.items()} for i, n in enumerate(NOISES)},
        "start": {str(s): {"too early": a, "too late": b} for s, (a, b) in zip(STARTS, found, strict=True)},
        "rate_of_last_stage": math.log(curve[-(last // RECORD), 0] / curve[-1, 0]) / last,
        "rate_of_least_squares": RATE / TEMPERATURES[-1] * least_squares_curvature(t),
    }
    draw(report, curve, args.effort).savefig(args.out / "convergence.png", dpi=110)
    (args.out / "convergence.json").write_text(json.dumps(report, indent=2) + "\n")

    columns = "at_samples", "outside_knot_gaps", "everywhere"
    print(f"largest error of {SEEDS} runs:", ", ".join(columns))
    for n, r in report["noise"].items():
        print(f"  noise {n:5} " + " ".join(f"{max(r[k]):8.5f}" for k in columns))
    print("knots found from", report["start"])
    print(f"rate {report['rate_of_last_stage']:.2e}, of least squares {report['rate_of_least_squares']:.2e}")


if __name__ == "__main__":
    main()
