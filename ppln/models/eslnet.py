"""Deblurring by sparse coding, unrolled: eSL-Net and eSL-Net++, at the scale of their input.

The blurry frame is Y = J(t) X(t), pixel by pixel: X is the sharp frame, J the double integral of the events,

    J(t) = mean_s exp(c (N(s) - N(t)))      N(s): positive minus negative events until s

All of it is seen through features, made by learned filters: y of the frame, J of the events. X is a sum of
atoms of a dictionary, D a, few of them at work, and the code a is found by ISTA: steps down the gradient of
|J D a - y|^2 / 2, each followed by a soft threshold. That is a recurrent network, with the same learned
filters and thresholds in every step. A last dictionary turns the code into the sharp frame.

Both are written from the papers' mathematics. They share these departures:

* No super-resolution. The codes may be coarser than the frame instead (`stride`): the inputs go from space
  to depth and the output from depth to space. The papers' have the resolution of their input: stride 1.
* Events come as N(s) - N(t), of which J is a function pixel by pixel; the papers stack the counts of bins.
  Counts can be hundreds: they are squashed, asinh(count / 8).
* J = 2 sigmoid(features) is 1 where the features are 0, and bounded, as a gradient's steps need.
* The gradient's filters are learned apart from the dictionary (they start as its transpose).
* Filters of many channels are scaled, lest they diverge: see Filters.
* The last dictionary gives what to add to the blurry frame. In the papers it gives the sharp frame itself,
  which learns more slowly: where nothing moves, the frame has to be coded only to be given back.

Dimensions: B batch, T time stamps, S samples of the events, C width, H x W image, h x w codes.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ppln.functional.times import as_times
from ppln.models.deblurrer import EVENT_CHANNELS, Deblurrer, signed_count
from ppln.models.layout import crop, fold, interpolate, pad
from ppln.protocols import BINS

MOST_ITERATIONS = 10_000
THRESHOLD = 0.01  # before training; features are of the order of 1


class Filters(nn.Conv2d):
    """3x3 filters, `scale` times the weights where there are many channels.

    A step of Adam moves every weight by about the learning rate. What that does to the sum over the channels,
    again in every iteration, must not grow with their number, or else the iterations diverge.
    """

    def __init__(self, in_channels: int, out_channels: int, *, bias: bool = False) -> None:
        self.scale = min(1.0, 16 / in_channels)
        super().__init__(in_channels, out_channels, 3, padding=1, bias=bias)

    def reset_parameters(self) -> None:
        """As many channels out as in: a norm of about 1."""
        nn.init.normal_(self.weight, std=0.5 / (9 * self.in_channels) ** 0.5 / self.scale)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.scale * self.weight, self.bias, padding=1)


class Dictionary(nn.Module):
    """Features as sums of learned atoms, and ISTA's step towards the code that gives wanted features."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.atoms = Filters(width, width)
        self.gradient = Filters(width, width)
        with torch.no_grad():
            self.gradient.weight.copy_(self.atoms.weight.transpose(0, 1).flip(2, 3))
        self.log_threshold = nn.Parameter(torch.zeros(width))  # of the multiple of THRESHOLD

    def forward(self, code: Tensor) -> Tensor:
        return self.atoms(code)

    def step(self, code: Tensor, error: Tensor) -> Tensor:
        """The next code; error: how the loss changes with each feature. All [B, C, h, w]"""
        moved = code - self.gradient(error)
        threshold = THRESHOLD * self.log_threshold.exp()[:, None, None]
        return moved - moved.clamp(-threshold, threshold)


class DeblurESLNet(Deblurrer):
    """eSL-Net (Wang et al. 2020): sparse coding of the sharp frame, ISTA unrolled, double integral learned.

    y = L Y and J = 2 sigmoid(G(N(s) - N(t) for 14 s from 0 to 1)): L is one layer, G two. From a = 0,

        a <- shrink(a - W J (J D a - y))    `iterations` times; then X = Y + D_X a

    Another t only changes what the events are counted from; all but y is computed anew for each.

    width       channels of the features and of the codes
    stride      1: codes of the frame's resolution; 4: of a quarter of it, both ways
    """

    samples = BINS + 1

    def __init__(self, *, width: int = 64, iterations: int = 15, stride: int = 1) -> None:
        for name, value in (("width", width), ("iterations", iterations), ("stride", stride)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if iterations > MOST_ITERATIONS:  # a file of weights may say any number
            raise ValueError(f"iterations must be {MOST_ITERATIONS} at most, got {iterations}")
        super().__init__()
        self.in_channels = EVENT_CHANNELS + 1
        self.iterations = iterations
        self.stride = stride
        area = stride * stride
        self.frame_filter = nn.Conv2d(area, width, 3, padding=1, bias=False)
        self.event_filter = nn.Sequential(
            nn.Conv2d(self.samples * area, width, 3, padding=1),
            nn.ReLU(),
            Filters(width, width, bias=True),
        )
        self.dictionary = Dictionary(width)
        self.output = Filters(width, area)
        with torch.no_grad():
            self.output.weight.mul_(0.2)  # begin near the blurry frame

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, 27, H, W] -> blurry [B, 1, H, W], its features [B, C, h, w], event counts [B, 14, 1, H, W]"""
        blurry = x[:, -1:]
        return blurry, self.frame_filter(self.to_depth(blurry)), signed_count(x)

    def decode(self, code: tuple[Tensor, Tensor, Tensor], t: Tensor | float) -> Tensor:
        blurry, frame, counts = code
        times, many = as_times(t, counts.shape[0], counts)
        events = self.events(counts, times)  # [B, T, C, h, w]
        frames = frame[:, None].expand(-1, times.shape[1], -1, -1, -1)
        sparse = self.solve(frames.flatten(0, 1), events.flatten(0, 1))
        change = crop(F.pixel_shuffle(self.output(sparse), self.stride), blurry)
        y = blurry[:, None] + change.unflatten(0, times.shape)
        return y if many else y.squeeze(1)

    def to_depth(self, images: Tensor) -> Tensor:
        return F.pixel_unshuffle(pad(images, self.stride), self.stride)

    def event_features(self, relative: Tensor) -> Tensor:
        """Counts since the reference time [B, T, S, H, W] -> [B, T, C, h, w]"""
        return fold(lambda stack: self.event_filter(self.to_depth(stack)), torch.asinh(relative / 8))

    def events(self, counts: Tensor, t: Tensor) -> Tensor:
        """counts [B, 14, 1, H, W], t [B, T] -> what J is made of [B, T, C, h, w]"""
        return self.event_features(counts.transpose(1, 2) - interpolate(counts, t))

    def solve(self, frame: Tensor, events: Tensor) -> Tensor:
        """The sparse code of the sharp frame. All [B T, C, h, w]"""
        integral = 2 * events.sigmoid()
        code = torch.zeros_like(frame)
        for _ in range(self.iterations):
            code = self.dictionary.step(code, integral * (integral * self.dictionary(code) - frame))
        return code


class DeblurESLNetPP(DeblurESLNet):
    """eSL-Net++ (Yu et al. 2023): eSL-Net in which the double integral, too, is a sparse code to be found.

    J = 2 sigmoid(z), and z = D_E b should be like the features e of the events, which are noisy, and explain
    the frame. One iteration is a step of b, then one of a, both down the gradient of
    |J D a - y|^2 / 2 + |D_E b - e|^2 / 2:

        b <- shrink(b - W_E (z - e + u J' x (J x - y) / (1 + x^2)))     x = D a, J' = J (1 - J / 2)
        a <- shrink(a - W J (J D a - y))                                with J from the new b

    The weight u of the frame is learned, for each channel. The division by 1 + x^2, as in Gauss-Newton, is
    not in the paper: it keeps x times x from growing without bound.

    The options are eSL-Net's. Other times follow the paper's rule of shuffling and merging: what came before
    t is reversed in time and polarity, so that both parts lead away from t. J splits in two such integrals:

        J(t) = t mean_u exp(c (N(t - t u) - N(t))) + (1 - t) mean_u exp(c (N(t + (1 - t) u) - N(t)))

    So are the features made: G of 13 samples u of either part, then their mean, weighted by t and 1 - t. (The
    paper merges the events, then stacks them.) Thus a film run backwards gives the same frames, backwards.
    """

    samples = BINS

    def __init__(self, *, width: int = 64, iterations: int = 15, stride: int = 1) -> None:
        super().__init__(width=width, iterations=iterations, stride=stride)
        self.event_dictionary = Dictionary(width)
        self.log_coupling = nn.Parameter(torch.zeros(width))

    def events(self, counts: Tensor, t: Tensor) -> Tensor:
        now = t[..., None]  # [B, T, 1]
        away = torch.linspace(0, 1, self.samples + 1, device=t.device, dtype=t.dtype)[1:]
        at = torch.cat([now - now * away, now + (1 - now) * away], -1).clamp(0, 1)  # [B, T, 2 S]
        sampled = interpolate(counts, at.flatten(1)).reshape(*at.shape, *counts.shape[-2:])
        before, after = (sampled - interpolate(counts, t)).chunk(2, 2)
        first, second = self.event_features(after), self.event_features(before)
        return torch.lerp(first, second, now[..., None, None].to(first.dtype))

    def solve(self, frame: Tensor, events: Tensor) -> Tensor:
        coupling = self.log_coupling.exp()[:, None, None].to(frame.dtype)
        code = event_code = logit = torch.zeros_like(frame)
        for _ in range(self.iterations):
            sharp = self.dictionary(code)
            integral = 2 * logit.sigmoid()
            slope = integral * (1 - integral / 2)
            pull = coupling * slope * sharp * (integral * sharp - frame) / (1 + sharp.square())
            event_code = self.event_dictionary.step(event_code, logit - events + pull)
            logit = self.event_dictionary(event_code)
            integral = 2 * logit.sigmoid()
            code = self.dictionary.step(code, integral * (integral * sharp - frame))
        return code
