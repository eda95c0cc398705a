"""Deblurring by polynomials of time, after E-CIR (Song et al. 2022).

What it takes and gives is told in deblurrer.py.

Dimensions: B batch, T time stamps, K = 14 frames of the protocol, N = 10 key points, H x W image.
"""

from functools import cache

import numpy as np
import torch
from numpy.polynomial import legendre
from torch import Tensor, nn

from ppln.functional.times import as_times
from ppln.models.deblurrer import EVENT_CHANNELS, Deblurrer, grid
from ppln.models.layout import crop, interpolate, pad, silence
from ppln.models.unet import STRIDE, UNet
from ppln.protocols import BINS

POINTS = 10  # at which the derivative is predicted: also the degree of the brightness
HIDDEN = 16  # channels of the refinement's state
NEARBY = 4  # channels of events that touch a frame: two bins x (positive, negative)


@cache
def key_points() -> np.ndarray:
    """Key points in [-1, 1] for every pattern of bins with and without events -> [2^13, N], increasing.

    Bit k of the pattern says whether bin k has an event. The pivots are linspace(-1, 1, 10); the cell of each
    is what is nearest to it, and the middle bin's centre, on the border of two, counts to the later one.
    Neighbours are never closer than 1/9, half the distance of two pivots.
    """
    pivots, centres = np.linspace(-1, 1, POINTS), (2 * np.arange(BINS) + 1) / BINS - 1
    cells = np.floor((centres + 1) / 2 * (POINTS - 1) + 0.5).astype(int)  # the bins' pivots
    patterns = np.arange(2**BINS)
    points = np.tile(pivots, (len(patterns), 1))
    for bin in np.argsort(-abs(centres - pivots[cells])):  # the nearest to its pivot comes last, and wins
        points[patterns >> bin & 1 == 1, cells[bin]] = centres[bin]
    return points


@cache
def antiderivatives() -> np.ndarray:
    """Derivatives at the key points -> Legendre coefficients 1..10 of their antiderivative [2^13, N, N].

    Solved in float64. In Legendre polynomials this is well conditioned, whatever the pattern (at most 110);
    coefficient 0 of the antiderivative is its mean over [-1, 1], which is ours to choose.
    """
    through = np.linalg.inv(legendre.legvander(key_points(), POINTS - 1))
    return (legendre.legint(np.eye(POINTS)) @ through)[:, 1:]


def basis(times: Tensor) -> Tensor:
    """Legendre polynomials 0..10 of 2 t - 1, for t in [0, 1] -> [..., N + 1]"""
    tau = 2 * times - 1
    values = [torch.ones_like(tau), tau]
    for n in range(1, POINTS):
        values.append(((2 * n + 1) * tau * values[n] - n * values[n - 1]) / (n + 1))
    return torch.stack(values, -1)


def evaluate(coefficients: Tensor, times: Tensor) -> Tensor:
    """Polynomials [B, N + 1, H, W] at t [B, T], or [1, T] for all -> [B, T, 1, H, W]"""
    values = basis(times)[..., None, None, None]  # [B, T, N + 1, 1, 1, 1]
    y = values[:, :, 0] * coefficients[:, None, :1]
    for n in range(1, POINTS + 1):  # one after the other: all terms at once would be 11 times as large
        y = y + values[:, :, n] * coefficients[:, None, n : n + 1]
    return y


class Refinement(nn.Module):
    """Frame after frame: the last refined one, the polynomial's, the events at both its sides -> a residual.

    Counts of events are taken as log(1 + count); the state is bounded by tanh.
    """

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(2 + NEARBY + HIDDEN, HIDDEN, 3, padding=1)
        self.update = nn.Conv2d(HIDDEN, HIDDEN, 3, padding=1)
        self.residual = nn.Conv2d(HIDDEN, 1, 3, padding=1)
        silence(self.residual)  # training starts from the polynomials as they are

    def forward(self, frames: Tensor, events: Tensor) -> Tensor:
        """frames [B, K, 1, H, W], events [B, 26, H, W] -> residuals [B, K, 1, H, W]"""
        bins = events.abs().log1p().unflatten(1, (BINS, 2))
        nothing = torch.zeros_like(bins[:, :1])
        bins = torch.cat([nothing, bins, nothing], 1)  # frame k is between bins k and k + 1 of these
        last = frames[:, 0]
        state = torch.zeros_like(last).expand(-1, HIDDEN, -1, -1)
        residuals = []
        for k in range(frames.shape[1]):
            seen = torch.cat([last, frames[:, k], bins[:, k], bins[:, k + 1], state], 1)
            state = self.update(self.enter(seen).relu()).tanh()
            residuals.append(self.residual(state).to(frames.dtype))
            last = frames[:, k] + residuals[-1]
        return torch.stack(residuals, 1)


class DeblurECIR(UNet, Deblurrer):
    """E-CIR (Song et al. 2022): every pixel a polynomial of degree 10 in time, then a recurrent refinement.

    The plain U-Net predicts the brightness's derivative at 10 key points, one near each of 10 uniform pivots.
    The polynomial of degree 9 through these is integrated exactly, in float32, and its constant
    makes the mean over the exposure the blurry pixel. The U-Net takes counts of events as they are.

    Departures from the paper. Its key points are the time stamps of events; here the events come in 13 bins,
    so a key point is the centre of the nearest bin with an event at this pixel, within the pivot's own cell,
    else the pivot. Its refinement ends with the frames it was run on; here it runs over the 14 frames of the
    protocol, and what it adds to them is interpolated linearly in between, so that a frame depends on
    x and its own t alone. Both parts are trained together.

    refine: False leaves the polynomials as they are: their mean is the blurry frame, exactly. balance: weigh
    the two polarities by how their counts vary over the picture; not in the paper.
    """

    antiderivatives: Tensor  # [2^13, N * N]

    def __init__(self, *, width: int = 64, refine: bool = True, balance: bool = False) -> None:
        super().__init__(EVENT_CHANNELS + 1, POINTS, width)
        self.balance = balance
        silence(self.head)  # training starts from the blurry frame
        self.refinement = Refinement() if refine else None
        table = torch.tensor(antiderivatives(), dtype=torch.float32).flatten(1)
        self.register_buffer("antiderivatives", table, persistent=False)

    def polynomials(self, x: Tensor) -> Tensor:
        """Legendre coefficients of the brightness [B, N + 1, H, W]; 0 is the mean, the blurry pixel."""
        compute = torch.promote_types(x.dtype, torch.float32)
        slopes = self.head(crop(self.features(pad(x, STRIDE)), x)).to(compute)  # [B, N, H, W]
        active = (x[:, :EVENT_CHANNELS] != 0).unflatten(1, (BINS, 2)).any(2)
        bit = 2 ** torch.arange(BINS, device=x.device)
        pattern = (active * bit[:, None, None]).sum(1)  # [B, H, W]
        weights = nn.functional.embedding(pattern, self.antiderivatives).to(compute)
        # Not a matrix product, which autocast or TF32 would shorten to 8 or 11 bits.
        products = weights.unflatten(-1, (POINTS, POINTS)) * slopes.movedim(1, -1)[..., None, :]
        return torch.cat([x[:, -1:].to(compute), products.sum(-1).movedim(-1, 1)], 1)

    def encode(self, x: Tensor) -> tuple[Tensor, ...]:
        coefficients = self.polynomials(x)
        if self.refinement is None:
            return (coefficients,)
        return coefficients, self.refinement(evaluate(coefficients, grid(x)), x[:, :EVENT_CHANNELS])

    def decode(self, code: tuple[Tensor, ...], t: Tensor | float) -> Tensor:
        coefficients, *residuals = code
        times, many = as_times(t, coefficients.shape[0], coefficients)
        y = evaluate(coefficients, times)
        y = y if many else y.squeeze(1)
        return y + interpolate(residuals[0], t) if residuals else y
