"""Imports of what need not be installed, and of what is not always needed."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def require(library: str, requirement: str, what: str) -> Any:
    """Import an optional library, or say how to get it."""
    try:
        return importlib.import_module(library)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"{what} needs {library}; run: pip install '{requirement}'") from None


def on_demand(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package that imports a name when it is first asked for.

    homes: name -> the module of the package that has it; a module is its own.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f"{package}.{homes[name]}")
        value = module if homes[name] == name else getattr(module, name)
        setattr(sys.modules[package], name, value)  # from now on it is there
        return value

    return find
