"""Parametric Piecewise Linear Networks: layers whose outputs are functions of time."""

from typing import TYPE_CHECKING

from ppln.imports import on_demand

if TYPE_CHECKING:
    from ppln import events, functional, models, nn, restore
    from ppln.events import Events, iter_events, read_events, read_recording
    from ppln.films import deblur
    from ppln.functional import piecewise_linear
    from ppln.models import create_model, list_models, load_released
    from ppln.nn.convert import convert
    from ppln.pose_films import pose
    from ppln.steer_films import steer

__version__ = "0.1.0"
__all__ = [
    "Events",
    "convert",
    "create_model",
    "deblur",
    "events",
    "functional",
    "iter_events",
    "list_models",
    "load_released",
    "models",
    "nn",
    "piecewise_linear",
    "pose",
    "read_events",
    "read_recording",
    "restore",
    "steer",
]

# Rooms are imported when they are first asked for: `ppln --help` should not wait for torch.
_HOMES = {
    "Events": "events",
    "convert": "nn",
    "create_model": "models",
    "deblur": "films",
    "events": "events",
    "functional": "functional",
    "iter_events": "events",
    "list_models": "models",
    "load_released": "models",
    "models": "models",
    "nn": "nn",
    "piecewise_linear": "functional",
    "pose": "pose_films",
    "read_events": "events",
    "read_recording": "events",
    "restore": "restore",
    "steer": "steer_films",
}


__getattr__ = on_demand(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
