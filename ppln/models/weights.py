"""Trained weights as one small file, and the card that says what they are.

The file is one of safetensors, which many programs read. Its header has a JSON text, "ppln": the network's
name, its options and its card, and a SHA-256 over all of this and the tensors. Weights are stored in float32,
bfloat16 or float16 and are float32 once read; buffers, such as the statistics of a BatchNorm, are always
float32, and whole numbers stay what they are.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from ppln.files import write_whole
from ppln.forms import SCALAR, brief, check_form, parse_json, shown
from ppln.markdown import grid
from ppln.models.networks import (
    NETWORKS,
    all_options,
    check_shapes,
    fitting,
    shapes,
    with_weights,
    without_memory,
)

SUFFIX = ".safetensors"
CITATION = """\
@inproceedings{song2024pplns,
  title     = {{PPLNs}: Parametric Piecewise Linear Networks for Event-Based Temporal Modeling and Beyond},
  author    = {Song, Chen and Liang, Zhenxiao and Sun, Bo and Huang, Qixing},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2024}
}"""
_FORMAT = 1
_KEY = "ppln"
_FORM = {
    **dict.fromkeys(("name", "data", "budget", "licence", "citation", "date", "dtype"), str),
    "metrics": [(str, float, str, str)],
    "options": {str: SCALAR},
    "parameters": int,
}

Dtype = Literal["float32", "bfloat16", "float16"]


class Measured(NamedTuple):
    name: str
    value: float
    unit: str  # empty for a plain number
    data: str  # what it was measured on


_OPTIONS = {  # that many networks have
    "width": "how many channels the first level or layer has; deeper ones have multiples of it.",
    "segments": "of the piecewise linear functions that PP layers predict.",
    "temperature": "the higher, the sharper these functions bend from segment to segment; None: at once.",
    "normalize": "whether the mean of each function over time is set.",
}


@dataclass(frozen=True)
class Card:
    """What is known of a network and its weights. `write` fills in the last four."""

    data: str = ""
    """What it was trained on. Empty: there are no weights."""
    budget: str = ""
    """How long it was trained, and on what."""
    metrics: tuple[Measured, ...] = ()
    licence: str = "MIT"
    """Of the weights."""
    citation: str = CITATION
    """In BibTeX."""
    date: str = ""
    """When it was trained, as 2026-01-31."""
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    parameters: int = 0
    dtype: str = "float32"

    def markdown(self) -> str:
        """The card as a page: what it is, data, budget, metrics, licence, how to load it."""
        network = NETWORKS[self.name]
        trained = bool(self.data)
        untrained = "no trained weights come with it" if self.parameters else "nothing is learnt"
        rows = {
            "input": f"{network.input}; t [B, T] in [0, 1]",
            "output": network.output,
            "options": ", ".join(f"{key}={value!r}" for key, value in self.options.items()) or "none",
            "parameters": f"{self.parameters:,}" + (f", stored in {self.dtype}" if trained else ""),
            "data": self.data or f"none: {untrained}",
        }
        if trained:
            rows |= {"budget": self.budget, "licence": self.licence, "date": self.date}
        page = [f"# {self.name}", network.summary, grid([("", ""), *rows.items()], padded=False)]
        if self.options:
            shared = [
                of
                for of in _OPTIONS
                if of in self.options and not re.search(rf"\b{of}(:|  )", network.details)
            ]
            told = "\n".join(f"* {of}: {_OPTIONS[of]}" for of in shared)
            page += ["## How it works, and its options", *filter(None, [network.details, told])]
        if self.metrics:
            lines = [(m.name, f"{m.value:.6g}", m.unit, m.data) for m in self.metrics]
            page += ["## Metrics", grid([("metric", "value", "unit", "measured on"), *lines], padded=False)]
        call = f'"{self.name}", pretrained=True' if trained else f'"{self.name}"'
        page += [
            "## Use",
            f"```python\nimport ppln\n\nmodel = ppln.create_model({call})\ny = model(x, t)\n```",
        ]
        if trained:
            page += [f'A file that is not in the package: `pretrained="FOLDER/{self.name}{SUFFIX}"`.']
        page += ["## Citation", f"```bibtex\n{self.citation}\n```"]
        return "\n\n".join(page) + "\n"


def write(
    path: Path | str,
    model: nn.Module,
    name: str,
    options: Mapping[str, Any],
    card: Card,
    *,
    dtype: Dtype = "float32",
    overwrite: bool = True,
) -> Card:
    """Write the weights of a network, which is create_model(name, **options), with what is known of them.

    The file is there whole or not at all. Gives the card as it was written.
    """
    path = Path(path)
    if path.suffix != SUFFIX:
        raise ValueError(f"path: {path.name} must end in {SUFFIX}")
    if dtype not in get_args(Dtype):
        raise ValueError(f"dtype must be one of {', '.join(get_args(Dtype))}, got {dtype!r}")
    for metric in card.metrics:
        if not math.isfinite(metric.value):
            raise ValueError(f"card: the metric {metric.name} is {metric.value}; leave it out")
    state = model.state_dict()
    check_shapes("model", name, shapes(without_memory(name, options)), state)
    weights = dict(model.named_parameters())
    tensors = {
        key: _stored(key, value, getattr(torch, dtype if key in weights else "float32"))
        for key, value in state.items()
    }
    count = sum(weight.numel() for weight in weights.values())
    card = replace(card, name=name, options=plain_options(name, options), parameters=count, dtype=dtype)
    header = {"format": _FORMAT, **_words(name), **asdict(card)}
    header["sha256"] = _sha256(header, tensors)
    # One entry: the library writes several in any order, and the same weights should give the same file.
    from safetensors.torch import save

    content = save(tensors, {_KEY: json.dumps(header, allow_nan=False)})
    write_whole(path, content, overwrite=overwrite)
    return card


def read(path: Path | str) -> tuple[nn.Module, Card]:
    """The network in a file that `write` wrote, in eval mode and float32, and its card."""
    values, card = load(path)
    return with_weights(card.name, card.options, values), card


def load(path: Path | str) -> tuple[dict[str, Tensor], Card]:
    """What `read` makes a network of: the values of its state_dict, in float32, and the card."""
    path = Path(path)
    header, tensors = _open(path)
    if header.get("format") != _FORMAT:
        raise ValueError(
            f"{path} has format {shown(header.get('format'))} of weights, and this ppln reads {_FORMAT}; "
            "install the version that wrote it, or export it again"
        )
    if header.pop("sha256", None) != _sha256(header, tensors):
        raise ValueError(f"{path} is damaged: its SHA-256 differs; copy or export it again")
    try:
        check_form(header, _FORM)
        name = header["name"]
        if name not in NETWORKS:
            raise ValueError(
                f"it is of a network {shown(name)}, which this ppln does not have; install a newer one"
            )
        return fitting(name, header["options"], tensors), _card(header)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def describe(name: str) -> Card:
    """The card of a network without weights."""
    parameters = sum(p.numel() for p in without_memory(name, {}).parameters())
    return Card(name=name, options=plain_options(name, {}), parameters=parameters)


def _open(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Our part of the header, and the tensors as they are stored."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}; give one that `ppln export` wrote")
    try:
        with safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get(_KEY)
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        header = None if text is None else parse_json(text)
    except (SafetensorError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged, or no file of safetensors ({brief(str(error))}); "
            "give a .safetensors of `ppln export`"
        ) from None
    except (MemoryError, OSError) as error:  # which do not name the file
        raise type(error)(f"{path} cannot be read ({error})") from None
    if not isinstance(header, dict):
        raise ValueError(f"{path} does not say what network it is of; make one with `ppln export`")
    return header, tensors


def _card(header: Mapping[str, Any]) -> Card:
    values = {key: header[key] for key in Card.__dataclass_fields__}
    return Card(**{**values, "metrics": tuple(Measured(*metric) for metric in values["metrics"])})


def _words(name: str) -> dict[str, str]:
    """For those who read the header without ppln."""
    return {"input": NETWORKS[name].input, "output": NETWORKS[name].output}


def plain_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options that a file can hold, defaults as well: those may change."""
    plain = {}
    for key, value in all_options(name, options).items():
        if value is None or isinstance(value, bool | int | float | str):
            plain[key] = value
        elif key in options:
            raise ValueError(f"options: {key}={value!r} cannot be written to a file")
    return plain


def _stored(key: str, value: Tensor, dtype: torch.dtype) -> Tensor:
    if not value.is_floating_point():
        dtype = value.dtype
    stored = value.detach().to("cpu", dtype, copy=True).contiguous()
    if not stored.isfinite().all():
        raise ValueError(f"model: {key} has values that are not finite numbers in {dtype}")
    return stored


def _sha256(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for key, value in sorted(tensors.items()):
        digest.update(f"{key} {value.dtype} {list(value.shape)}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
