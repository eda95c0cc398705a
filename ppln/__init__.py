"""Parametric Piecewise Linear Networks: layers whose outputs are functions of time."""

from ppln import events, functional, models, nn
from ppln.events import Events, iter_events, read_events, read_recording
from ppln.functional import piecewise_linear
from ppln.models import create_model, list_models, load_released
from ppln.nn import convert

__version__ = "0.1.0"
__all__ = [
    "Events",
    "convert",
    "create_model",
    "events",
    "functional",
    "iter_events",
    "list_models",
    "load_released",
    "models",
    "nn",
    "piecewise_linear",
    "read_events",
    "read_recording",
]
