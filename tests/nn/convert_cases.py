"""Networks to be converted, and what they are given."""

import threading

import torch
import torch.nn.functional as F
from torch import Tensor, nn

B = 4


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            conv = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """CIFAR style, small."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(Block(8, 8, 1))
        self.layer2 = nn.Sequential(Block(8, 16, 2), Block(16, 16, 1))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        return self.fc(self.pool(self.layer2(self.layer1(x))).flatten(1))


def resnet() -> ResNet:
    """With statistics that are not those of a new batch norm, ready to be compared."""
    net = ResNet()
    with torch.no_grad():
        for _ in range(3):
            net(torch.randn(16, 3, 8, 8))
    return net.eval()


class Shared(nn.Module):
    """One layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5)
        self.second = self.first
        self.out = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu(self.second(F.relu(self.first(x)))))


class AllKinds(nn.Module):
    """Every layer that has a PP layer, with options."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Conv1d(2, 4, 3, padding=1, padding_mode="circular")
        self.two = nn.Conv2d(4, 4, 3, padding="same", groups=2, dilation=2)
        self.up = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2, bias=False)
        self.three = nn.Conv3d(1, 2, (3, 1, 1), bias=False)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:  # [B, 2, 6]
        x = F.relu(self.one(x))[..., None].expand(-1, -1, -1, 4)
        x = self.up(F.relu(self.two(x)))[:, None]
        return self.fc(F.relu(self.three(x)))  # [B, 2, 4, 12, 3]


class Several(nn.Module):
    """More arguments than one, and results in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(5, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, scale: float = 1.0, *, square: bool = False) -> dict:
        features = F.relu(self.body(x)) * scale
        y = self.head(features)
        return {"y": y.square() if square else y, "features": [features], "scale": scale}


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.fc(x)
        raise ArithmeticError("inside forward")


class Meets(nn.Module):
    """Waits for another thread between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(5, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor, barrier: threading.Barrier | None = None) -> Tensor:
        x = F.relu(self.one(x))
        if barrier is not None:
            barrier.wait(10)
        return self.two(x)


def inputs(net: nn.Module) -> Tensor:
    if isinstance(net, ResNet):
        return torch.randn(B, 3, 8, 8)
    return torch.randn(B, 2, 6) if isinstance(net, AllKinds) else torch.randn(B, 5)


def stirred(net: nn.Module) -> nn.Module:
    """As after training: every coefficient of every PP layer at work."""
    with torch.no_grad():
        for p in net.parameters():
            p += torch.randn_like(p) * 0.3
    return net
