"""Parametric Piecewise Linear Networks: layers whose outputs are functions of time."""

from ppln import functional, nn
from ppln.functional import piecewise_linear
from ppln.nn import convert

__version__ = "0.1.0"
__all__ = ["convert", "functional", "nn", "piecewise_linear"]
