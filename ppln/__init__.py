"""Parametric Piecewise Linear Networks: layers whose outputs are functions of time."""

from ppln import functional, models, nn
from ppln.functional import piecewise_linear
from ppln.models import create_model, list_models, load_released
from ppln.nn import convert

__version__ = "0.1.0"
__all__ = [
    "convert",
    "create_model",
    "functional",
    "list_models",
    "load_released",
    "models",
    "nn",
    "piecewise_linear",
]
