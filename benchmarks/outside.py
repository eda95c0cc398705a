"""Would events just before and after an exposure help at its ends?

    python benchmarks/outside.py OUT.json --textures made+video

Two networks of the kind that ships, trained alike on the same scenes, one of which is also given the events
of two bins of time before the exposure and of two after it. PSNR at each of the 14 times, of test scenes.
"""

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ppln.datasets.source import DeblurSample
from ppln.datasets.synthetic.scenes import Scenes
from ppln.datasets.synthetic.scenes.scenes import BEFORE
from ppln.engine import provenance
from ppln.events.count import Clock
from ppln.metrics import PEAK, psnr, to_uint8
from ppln.models.deblurrer import QUIET
from ppln.models.head import MANY, REACH, DeblurPPLNHead
from ppln.models.layout import fold
from ppln.protocols import BINS

MORE = 2  # bins before, and as many after
ALL = BINS + 2 * MORE
AS_SHIPPED: dict[str, Any] = {"width": 40, "channels": 24, "layers": 4, "segments": 6, "plain": "hidden"}


class WideScenes(Scenes):
    """Whose histogram also has what happened in MORE bins before and after the exposure."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        steps, after = (self.frames - 1) * self.substeps, MORE * self.substeps
        scale = float(1 / (self.drawn[1] - self.drawn[0]))
        self.drawn = torch.arange(-self.before, steps + after + 1, dtype=torch.float64) / scale
        moments = torch.arange(self.before + steps + after + 1) * self.window_us / steps
        self.steps_us = moments.round().long().numpy()
        self.bins = BEFORE + self.frames - 1 + MORE
        self.clock = Clock.of(torch.from_numpy(self.steps_us)[None], torch.tensor([1]), self.bins)

    def _sample(self, light: Tensor, histogram: Tensor, indices: Any) -> DeblurSample:
        sample = super()._sample(light, histogram, indices)
        return sample._replace(histogram=histogram[:, 2 * (BEFORE - MORE) :])


class WideHead(DeblurPPLNHead):
    """Reads x [B, 35, H, W]: 17 bins of which the middle 13 are the exposure, then the blurry frame."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        first: Any = self.encoder[0]
        self.encoder[0] = nn.Conv2d(2 * ALL + 1, first.out_channels, 5, stride=2, padding=2)
        one: Any = self.layers[0]
        inputs = one.in_channels + 4 * MORE
        self.layers[0] = type(one)(inputs, one.out_channels, 1, segments=one.segments)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:  # type: ignore[override]
        events = x[:, : 2 * ALL].unflatten(1, (ALL, 2))
        inner = events[:, MORE:-MORE].flatten(1, 2)
        deviation = (inner.unflatten(1, (BINS, 2)).sum(1).float().var((2, 3), correction=0) + QUIET**2).sqrt()
        weight = (deviation.flip(1) / deviation).sqrt().to(x.dtype)
        events = events * weight[:, None, :, None, None]
        blurry = x[:, 2 * ALL :]
        features = self.features(torch.cat([events.flatten(1, 2), blurry], 1))
        features = features.contiguous(memory_format=torch.channels_last)
        counts = (events[:, :, :1] - events[:, :, 1:]).cumsum(1)
        counts = nn.functional.pad(counts, (0, 0, 0, 0, 0, 0, 1, 0))
        return self.decode_wide(features, counts, blurry, t)

    def decode_wide(self, features: Tensor, counts: Tensor, blurry: Tensor, t: Tensor) -> Tensor:
        y = self._layer(0, features, t)
        assert self.around is not None
        y = y + fold(self.around, around_wide(counts, t))
        last = len(self.layers) - 1
        for i in range(1, last):
            y = self._layer(i, torch.relu(y), t)
        return self._layer(last, torch.relu(y), t, blurry)


def around_wide(counts: Tensor, t: Tensor) -> Tensor:
    """events_around, of counts that begin MORE bins before t = 0 and end as many after t = 1"""
    after = 2 ** torch.arange(REACH, device=t.device)
    lags = torch.cat([-after.flip(0), after])
    knots = torch.arange(counts.shape[1], device=t.device, dtype=t.dtype)

    def shares(times: Tensor) -> Tensor:
        return (1 - (times[:, :, None] - knots[:, None]).abs()).clamp(min=0)

    now = t[..., None] * BINS + MORE
    weight = (shares((now + lags).clamp(0, ALL)) - shares(now)) / MANY
    with torch.autocast(counts.device.type, enabled=False):
        pixels = counts.flatten(2).mT.to(weight.dtype)
        around = (pixels @ weight.transpose(1, 2).flatten(2)).tanh()
    around = around.unflatten(-1, weight.shape[1::2]).transpose(1, 2).to(counts.dtype).contiguous()
    return around.movedim(-1, 2).unflatten(-1, counts.shape[-2:])


def made(split: str, count: int, given: Any, between: int) -> DeblurSample:
    options: dict[str, Any] = {"size": (given.side, given.side), "substeps": 8, "motion_px": 80.0}
    source = WideScenes(split, length=count, davis=True, textures=given.textures, between=between, **options)
    make = source.captured(min(48, count), given.device)
    parts = []
    for k in range(0, count, 48):
        sample = make(range(k, min(k + 48, count)))
        parts.append(sample._replace(histogram=sample.histogram.half(), sharp=sample.sharp.half()))
    return DeblurSample(*(torch.cat(part) for part in zip(*parts, strict=True)))


def given_to(kind: str, sample: DeblurSample) -> Tensor:
    events = sample.histogram.float()
    if kind == "inside":
        events = events[:, 2 * MORE : -2 * MORE]
    return torch.cat([events, sample.blurry], 1)


def train(kind: str, samples: DeblurSample, given: Any, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    network: Any = (WideHead if kind == "outside" else DeblurPPLNHead)(**AS_SHIPPED).to(given.device)
    network = network.to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(network.parameters(), 1e-3, fused=True)
    chosen = torch.Generator().manual_seed(seed)
    average = {k: v.detach().clone() for k, v in network.state_dict().items()}
    for step in range(given.steps):
        warm = min(1.0, (step + 1) / 200)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * warm * 0.5 * (1 + math.cos(math.pi * step / given.steps))
        rows = torch.randint(len(samples.blurry), (given.batch,), generator=chosen).to(given.device)
        part = DeblurSample(*(each[rows] for each in samples))
        frames = part.sharp.shape[1]
        at = torch.stack([torch.randperm(frames, generator=chosen)[:4] for _ in range(given.batch)])
        at = at.to(given.device)
        t = part.times.gather(1, at)
        target = part.sharp.float().take_along_dim(at[:, :, None, None], 1)[:, :, None]
        x = given_to(kind, part).contiguous(memory_format=torch.channels_last)
        with torch.autocast(given.device, torch.bfloat16, enabled=given.device == "cuda"):
            found = network(x, t)
        error = found.float() - target
        loss = error.abs().mean() + 2 * (error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        keep = min(0.998, (1 + step) / (10 + step))
        with torch.no_grad():
            for name, value in network.state_dict().items():
                average[name].lerp_(value, 1 - keep)
    network.load_state_dict(average)
    return network.eval()


@torch.no_grad()
def judge(kind: str, network: nn.Module, samples: DeblurSample, device: str) -> list[float]:
    found = []
    for k in range(0, len(samples.blurry), 16):
        part = DeblurSample(*(each[k : k + 16] for each in samples))
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            film = network(given_to(kind, part), part.times)[:, :, 0].float()
        found.append(psnr(to_uint8(film * PEAK), to_uint8(part.sharp.float() * PEAK)))
    return torch.cat(found).double().mean(0).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--textures", default="made")
    parser.add_argument("--device", default="cuda")
    sizes = {"steps": 1500, "batch": 32, "train": 4096, "test": 192, "side": 128, "seeds": 2}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    given = parser.parse_args()
    samples, test = made("train", given.train, given, 2), made("test", given.test, given, 1)
    rows = []
    for seed in range(given.seeds):
        for kind in ("inside", "outside"):
            start = time.time()
            values = judge(kind, train(kind, samples, given, seed), test, given.device)
            rows.append({"kind": kind, "seed": seed, "psnr": values, "seconds": time.time() - start})
            told = " ".join(f"{v:.2f}" for v in values)
            print(f"{kind:8} seed {seed}: mean {sum(values) / len(values):.2f}; {told}", flush=True)
            given.out.write_text(
                json.dumps({"about": provenance.about(command=False), "rows": rows}, indent=1) + "\n"
            )


if __name__ == "__main__":
    main()
