import torch
from torch import nn

from ppln.models.deblurrer import Deblurrer
from ppln.models.layout import repeat


class Convolved(Deblurrer):
    """A 3 x 3 filter of whole numbers over blurry frame and events, times 1 + t: exact in float32."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(27, 1, 3, padding=1, bias=False)
        with torch.no_grad():
            self.conv.weight.copy_(torch.randint(-2, 3, (1, 27, 3, 3)))
        self.encoded = []

    def encode(self, x):
        self.encoded.append(tuple(x.shape[2:]))
        return (self.conv(x),)

    def decode(self, code, t):
        frames = repeat(code[0], t)
        return frames + (frames * t[..., None, None, None] if t.dim() == 2 else 0)
