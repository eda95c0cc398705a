"""Layers whose outputs are piecewise linear functions of time."""

from ppln.nn import released
from ppln.nn.convert import convert
from ppln.nn.layers import PPConv1d, PPConv2d, PPConv3d, PPConvTranspose2d, PPLinear, at_time
from ppln.nn.potential import Potential

__all__ = [
    "PPConv1d",
    "PPConv2d",
    "PPConv3d",
    "PPConvTranspose2d",
    "PPLinear",
    "Potential",
    "at_time",
    "convert",
    "released",
]
