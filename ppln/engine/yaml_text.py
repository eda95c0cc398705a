"""Settings as YAML, read with bounds: a few lines of it may stand for any number of values."""

import math
import re
from collections.abc import Mapping
from typing import Any

from ppln.forms import check_depth, named_once
from ppln.imports import require

CHARACTERS = 100_000  # of a text; PyYAML takes seconds for as many, and 100 times the memory
VALUES = 10_000  # that it stands for


def parse(text: str) -> Any:
    if len(text) > CHARACTERS:
        raise ValueError(f"it has {len(text):,} characters, and settings have {CHARACTERS:,} at most")
    yaml, kind, _ = _yaml()
    try:
        loader = kind(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _count(node, {}) > VALUES:  # before they are made
            raise ValueError(f"it stands for more than {VALUES:,} values, which no settings do")
        values = loader.construct_document(node)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:  # as of `!!int ""`
        raise ValueError(
            'it has a value that is not of its type, that of its tag, as !!int "" has'
        ) from error
    except ValueError as error:
        if "integer string conversion" in str(error):  # Python's own words are for programmers
            raise ValueError("it has a number of thousands of digits") from None
        raise
    check_depth(values)
    return values


def _count(node: Any, counts: dict[Any, float]) -> float:
    """How many values a node stands for, an alias for all of what it names."""
    if node not in counts:
        counts[node] = math.inf  # for what is within itself
        inner = node.value if isinstance(node.value, list) else []
        named_once([(entry[0].value, None) for entry in inner if _is_named(entry)])
        parts = [part for entry in inner for part in (entry if isinstance(entry, tuple) else (entry,))]
        counts[node] = 1 + sum(_count(part, counts) for part in parts)
    return counts[node]


def _is_named(entry: Any) -> bool:
    return isinstance(entry, tuple) and isinstance(entry[0].value, str)


def dump(values: Mapping[str, Any]) -> str:
    yaml, _, dumper = _yaml()
    return yaml.dump(values, Dumper=dumper, sort_keys=False, width=110)


def _time(loader: Any, node: Any) -> Any:
    try:
        return loader.construct_yaml_timestamp(node)
    except ValueError as error:
        line = node.start_mark.line + 1
        raise ValueError(
            f"line {line} has {node.value}, which is no date ({error}); correct it, or put it in quotes"
        ) from None


def _yaml() -> tuple[Any, Any, Any]:
    """The module, a loader and a dumper for which 1e-3 is a number, as it is for everyone else."""
    yaml = require("yaml", "pyyaml", "a file of settings")
    loader, dumper = type("Loader", (yaml.SafeLoader,), {}), type("Dumper", (yaml.SafeDumper,), {})
    number = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")
    loader.add_constructor("tag:yaml.org,2002:timestamp", _time)  # type: ignore[attr-defined]
    for kind in (loader, dumper):
        kind.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))  # type: ignore[attr-defined]
    return yaml, loader, dumper
