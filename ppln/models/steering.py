"""Steering: ten pairs of a frame and an event frame -> the angle of the wheel at any time in them.

The networks over ten frames take x [B, 20, H, W]: channels 0..9 are the frames (APS), 10..19 the event
frames (DVS), each oldest first and scaled to [0, 1]. They give [B], or [B, T] for t [B, T]. Any image size
will do, since the trunk ends in a mean over the image; the paper's is 128 x 172.

Dimensions: B batch, T time stamps, H x W image.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn
from torch.nn import functional as F

from ppln.functional.times import as_times
from ppln.models.layout import interpolate, repeat
from ppln.nn import PPLinear
from ppln.protocols import ROWS


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut; a strided one skips pixels and pads channels with zeros."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        step, more = self.conv1.stride[0], y.shape[1] - x.shape[1]
        return F.relu(y + F.pad(x[..., ::step, ::step], (0, 0, 0, 0, more // 2, more // 2)))


class _Trunk(nn.Module):
    """ResNet of three stages, 16, 32 and 64 wide -> the mean over the image [B, 64]."""

    def __init__(self, in_channels: int, blocks: tuple[int, int, int]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = self._stage(16, 16, 1, blocks[0])
        self.layer2 = self._stage(16, 32, 2, blocks[1])
        self.layer3 = self._stage(32, 64, 2, blocks[2])

    @staticmethod
    def _stage(inputs: int, outputs: int, stride: int, blocks: int) -> nn.Sequential:
        later = (_Block(outputs, outputs, 1) for _ in range(blocks - 1))
        return nn.Sequential(_Block(inputs, outputs, stride), *later)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        return self.layer3(self.layer2(self.layer1(x))).mean((-2, -1))


class SteeringHu(nn.Module):
    """ResNet-32 on the most recent frame and event frame. It ignores t.

    x [B, 2, H, W]
    """

    first_time = 0  # of those that t may be; -1 for the authors' checkpoints

    def __init__(self) -> None:
        super().__init__()
        self.in_channels = 2
        self.trunk = _Trunk(self.in_channels, (5, 5, 5))
        self.linear = nn.Linear(64, 1)

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        as_times(t, x.shape[0], x, low=self.first_time)
        return repeat(self.linear(self.trunk(x)).squeeze(-1), t)


class SteeringHuMod(nn.Module):
    """ResNet-32 on ten frames and event frames: angles at ten time stamps, interpolated linearly."""

    def __init__(self) -> None:
        super().__init__()
        self.in_channels = 2 * ROWS
        self.trunk = _Trunk(self.in_channels, (5, 5, 5))
        self.linear = nn.Linear(64, ROWS)

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        return interpolate(self.linear(self.trunk(x)), t)


class _PPBlock(nn.Module):
    """Two PP layers and a shortcut."""

    def __init__(self, features: int, linear: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.linear1 = linear(features, features)
        self.linear2 = linear(features, features)

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        return F.relu(x + self.linear2(F.relu(self.linear1(x, t)), t))


class SteeringPPLN(nn.Module):
    """A plain trunk, run once for all times, and six PP layers. t is in [0, 1]."""

    def __init__(
        self,
        *,
        segments: int = 3,
        temperature: float | None = 100.0,
        normalize: bool = True,
        linear: Callable[..., nn.Module] = PPLinear,
    ) -> None:
        super().__init__()
        linear = partial(linear, segments=segments, temperature=temperature, normalize=normalize)
        self.in_channels = 2 * ROWS
        self.trunk = _Trunk(self.in_channels, (5, 5, 4))
        self.linear1 = linear(64, 32)
        self.blocks = nn.ModuleList(_PPBlock(32, linear) for _ in range(2))
        self.linear3 = linear(32, 1)

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        y = F.relu(self.linear1(self.trunk(x), t))
        for block in self.blocks:
            y = block(y, t)
        return self.linear3(y, t).squeeze(-1)
