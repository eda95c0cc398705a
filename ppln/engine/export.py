"""A trained network as one file for others: small weights, ONNX, or a program of torch.export.

    export(RUN, "steering-ppln.safetensors", dtype="bfloat16")    # ppln.create_model(..., pretrained=FILE)
    export(RUN, "steering-ppln.onnx")                             # ONNX Runtime and its like; no torch
    export(RUN, "steering-ppln.pt2")                              # torch.export.load(FILE).module(); no ppln

The last two are called with x [B, C, H, W] and t [B, T], for any B and T, and H and W of at least 17: below,
the deepest layers of a U-Net are one pixel high or wide, which torch.export treats as a case of its own. They
do not check that t is in [0, 1]. Their nodes are the reference, made of operations that everyone has. Each is
loaded and compared with the network before it gets its name.

Dimensions: B batch, T time stamps, C channels, H x W image.
"""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ppln.engine.trained import find
from ppln.files import check_target, put_in_place
from ppln.functional import use_backend
from ppln.models import weights
from ppln.models.weights import Card, Dtype
from ppln.progress import Screen

SUFFIXES = (".safetensors", ".onnx", ".pt2")
LEAST_SIZE = 17  # pixels, of a side
TOLERANCE = 1e-4  # of the largest output
_SIZES = ((2, 3, 37, 53), (1, 1, 17, 17), (3, 2, 48, 64), (2, 5, 32, 18))  # B, T, H, W to compare at
_Program = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Export:
    """Write a trained network as one file. For example: ppln export runs/deblur-small deblur.onnx"""

    network: Path
    """The folder of a training or of one of its checkpoints, a .safetensors file that this command wrote, or
    the name of a network that `ppln models` marks as trained, or as needing no training."""
    out: Path
    """The file to write. Its ending decides: .safetensors, which ppln reads; .onnx; or .pt2, of
    torch.export."""
    dtype: Dtype = "float32"
    """The type of the weights in a .safetensors file; with 16 bits, it is half as large."""
    ema: bool = True
    """Take the running average of the weights, where the training kept one (`ppln train --ema`)."""
    overwrite: bool = False
    """Replace a file that exists."""


class Exported(NamedTuple):
    path: Path
    card: Card
    size_bytes: int
    difference: float  # to the network, over the largest output; of .safetensors, what rounding does

    def text(self) -> str:
        check = f"its output differs from the network's by {self.difference:.1e} of the largest, at most"
        return f"wrote {self.path}, {self.size_bytes / 2**20:.1f} MiB\ncheck: {check}"


def run(how: Export, screen: Screen) -> str:
    """What `ppln export` does."""
    return export(how.network, how.out, dtype=how.dtype, ema=how.ema, overwrite=how.overwrite).text()


def export(
    source: Path | str,
    out: Path | str,
    *,
    dtype: Dtype = "float32",
    ema: bool = True,
    overwrite: bool = False,
) -> Exported:
    """Write the network of a run, of one of its checkpoints or of a small file, in the form `out` ends with.

    dtype: of weights in a .safetensors file; the others have float32.
    ema: take the running average of the weights, if the run kept one.
    """
    source, out = Path(source), Path(out)
    if out.suffix not in SUFFIXES:
        raise ValueError(
            f"out is {out}; give a name that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        )
    if out.suffix != ".safetensors" and dtype != "float32":
        raise ValueError(f"dtype is {dtype}, but {out.suffix} files have float32; leave it out")
    if out.suffix == ".onnx":
        _need_onnx()
    network = find(source, ema=ema)
    model, card = network.net, network.card
    check_target(out, overwrite=overwrite, inputs=_read_from(network.file))
    if out.suffix == ".safetensors":
        card = weights.write(out, model, card.name, card.options, card, dtype=dtype, overwrite=overwrite)
        difference = _compare(weights.read(out)[0], model)
    else:
        save = _save_onnx if out.suffix == ".onnx" else _save_program
        with put_in_place(out, overwrite=overwrite) as aside:
            difference = _compare(save(_trace(model), card, aside), model)
            if not difference <= TOLERANCE:
                raise ValueError(
                    f"out: {out.name} differs from the network by {difference:.1e} of its largest output, "
                    f"where {TOLERANCE:.0e} is allowed, and was not written"
                )
    return Exported(out, card, out.stat().st_size, difference)


def _read_from(weights: Path | None) -> list[Path]:
    """All of a checkpoint, or a file of its own."""
    if weights is None:
        return []
    return [weights.parent if (weights.parent / "manifest.json").exists() else weights]


def _trace(model: nn.Module) -> torch.export.ExportedProgram:
    """The network as torch's own operations, sizes left open."""
    batch, stamps = torch.export.Dim("batch"), torch.export.Dim("stamps")
    height, width = (torch.export.Dim(name, min=LEAST_SIZE) for name in ("height", "width"))
    shapes = {0: batch, 2: height, 3: width}, {0: batch, 1: stamps}
    with use_backend("reference"), torch.no_grad():
        return torch.export.export(
            model,
            _random_input(model, *_SIZES[0]),
            dynamic_shapes=shapes,
            # Else what torch cannot prove of all sizes would be an error, such as that a strided layer and a
            # strided slice have the same size.
            prefer_deferred_runtime_asserts_over_guards=True,
        )


def _save_program(program: torch.export.ExportedProgram, card: Card, path: Path) -> _Program:
    with path.open("wb") as out:  # torch warns of names that do not end in .pt2
        torch.export.save(program, out, extra_files={"card.md": card.markdown()})
    with path.open("rb") as written:
        return torch.export.load(written).module()


def _save_onnx(program: torch.export.ExportedProgram, card: Card, path: Path) -> _Program:
    import onnxruntime

    axes = {0: "batch", 2: "height", 3: "width"}, {1: "stamps"}  # each name once
    with _quiet():
        made = torch.onnx.export(
            program, input_names=["x", "t"], output_names=["y"], dynamic_shapes=axes, verbose=False
        )
    assert made is not None
    made.model.metadata_props["card"] = card.markdown()
    made.save(path, external_data=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(x: Tensor, t: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {"x": x.numpy(), "t": t.numpy()})[0])

    return run


def _compare(program: _Program, model: nn.Module) -> float:
    """The largest difference at random x and t, over the largest output of the network."""
    difference = largest = 0.0
    for size in _SIZES:
        x, t = _random_input(model, *size)
        with torch.no_grad():
            expected, got = model(x, t), program(x, t)
        if got.shape != expected.shape:
            raise ValueError(
                f"out: gives {list(got.shape)} for B, T, H, W of {size}, not {list(expected.shape)}"
            )
        difference = max(difference, (got - expected).abs().max().item())
        largest = max(largest, expected.abs().max().item())
    return difference / largest if largest else difference


def _random_input(model: Any, batch: int, stamps: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(batch, model.in_channels, height, width, generator=generator)
    return x, torch.rand(batch, stamps, generator=generator)


def _need_onnx() -> None:
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(
            f".onnx files need {', '.join(missing)}; run: pip install 'torch-ppln[export]'"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch says each time: that torchvision is missing, and that its own code is outdated."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*LeafSpec.*is deprecated", FutureWarning)
            yield
    finally:
        logger.setLevel(before)
