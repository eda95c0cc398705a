"""Parametric Piecewise Linear Networks: layers whose outputs are functions of time."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ppln import events, functional, models, nn, restore
    from ppln.events import Events, iter_events, read_events, read_recording
    from ppln.functional import piecewise_linear
    from ppln.models import create_model, list_models, load_released
    from ppln.nn.convert import convert

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
    "restore",
]

# Rooms are imported when they are first asked for: `ppln --help` should not wait for torch.
_HOMES = {
    "Events": "events",
    "convert": "nn",
    "create_model": "models",
    "iter_events": "events",
    "list_models": "models",
    "load_released": "models",
    "piecewise_linear": "functional",
    "read_events": "events",
    "read_recording": "events",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'ppln' has no attribute {name!r}")
    value = import_module(f"ppln.{_HOMES.get(name, name)}")
    if name in _HOMES:
        value = getattr(value, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
