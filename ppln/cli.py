"""The command line: parse, call, print."""

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal


def main() -> None:
    words = sys.argv[1:]
    debug = "--debug" in words
    name, *arguments = [word for word in words if word != "--debug"] or ["--help"]
    if name in ("-h", "--help"):
        print("usage: ppln COMMAND [--help] [--debug]\n")
        for command, (what, _) in _COMMANDS.items():
            print(f"  {command:19}{what}")
        print("\nErrors are one line; with --debug, also where they arose.")
    elif name not in _COMMANDS:
        sys.exit(f"ppln: there is no command {name!r}; there are: {', '.join(_COMMANDS)}")
    else:
        try:
            _COMMANDS[name][1](arguments)
        except BaseException as error:
            message, code = _explain(error)
            if debug or not message:
                raise
            if code == 1:
                sys.exit(f"ppln {name}: {message}")
            print(f"ppln {name}: {message}", file=sys.stderr)
            sys.exit(code)


def _explain(error: BaseException) -> tuple[str, int]:
    """What went wrong and what to do, in a line, and the exit code; nothing for what nobody foresaw."""
    text = " ".join(str(error).split())
    if isinstance(error, ValueError | OSError | ModuleNotFoundError):
        return text, 1
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    kind = type(error).__name__
    if kind == "Interrupted":  # by kind: what defines them takes seconds to import
        return text, error.code  # type: ignore[attr-defined]
    if kind == "NotFinite":
        return text, 1
    if kind == "OutOfMemoryError" or isinstance(error, MemoryError) or "can't allocate memory" in text:
        return f"out of memory; lower --batch, raise --accumulate, or use --precision bf16 ({text[:160]})", 1
    return "", 1


def _parse(what: Callable[..., Any], name: str, arguments: list[str], positional: bool = True) -> Any:
    """Call `what` with the options that its signature and docstrings describe."""
    try:
        import tyro
    except ModuleNotFoundError:
        sys.exit("ppln: the command line needs tyro; run: pip install 'tyro>=0.9'")
    config = [tyro.conf.OmitArgPrefixes, *([tyro.conf.PositionalRequiredArgs] if positional else [])]
    return tyro.cli(what, args=arguments, prog=f"ppln {name}", config=config)


def _bench(arguments: list[str]) -> None:
    from ppln import bench

    options = _parse(bench.Bench, "bench", arguments)
    result = bench.run(options)
    print(bench.table(result))
    if options.out is not None:
        print(f"wrote {options.out}")


def _info(arguments: list[str]) -> None:
    from ppln.events.io import Options
    from ppln.report import recording

    as_they_are = Options()

    def info(
        file: Path, plot: Path | None = None, format: str | None = None, reading: Options = as_they_are
    ) -> None:
        """Print what is in a recording: sensor, events, rates, gaps, frames, triggers, signals.

        Args:
            file: The recording: a file, or a folder.
            plot: Also draw it here, as PNG.
            format: Read it as this format; by default the content tells.
            reading: How to read it.
        """
        options = asdict(reading)
        summary = recording.summarize(file, format=format, **options)
        print(recording.text(summary))
        if plot is not None:
            recording.plot(summary, plot, **options)
            print(f"wrote {plot}")

    _parse(info, "info", arguments)


def _convert(arguments: list[str]) -> None:
    from ppln.events.io import Options, native

    as_they_are = Options()

    def convert(
        source: Path,
        target: Path,
        verify: bool = True,
        overwrite: bool = False,
        format: str | None = None,
        reading: Options = as_they_are,
    ) -> None:
        """Write a recording of any known format as HDF5 (docs/data.md describes the layout).

        Args:
            source: The recording: a file, or a folder.
            target: The HDF5 file to write.
            verify: Read both again and compare every array.
            overwrite: Replace a target that exists.
            format: Read the source as this format; by default the content tells.
            reading: How to read it.
        """
        counts = native.convert(
            source, target, format=format, options=reading, verify=verify, overwrite=overwrite
        )
        print(f"wrote {target}")
        print(f"  {counts.events:,} events, {counts.frames:,} frames, {counts.triggers:,} triggers")
        for name, number in counts.signals.items():
            print(f"  {name}: {number:,} values")
        if verify:
            print("verified: every array equals the source's")

    _parse(convert, "convert-recording", arguments)


def _simulate(arguments: list[str]) -> None:
    from ppln.events.camera import EventCamera
    from ppln.events.io import native
    from ppln.events.simulate import DVS
    from ppln.events.video import simulated_packets

    def simulate(
        video: Path,
        out: Path,
        camera: EventCamera = DVS,
        fps: float | None = None,
        seed: int = 0,
        frames: bool = True,
        overwrite: bool = False,
    ) -> None:
        """Write the recording that an event camera would have made of a video.

        Args:
            video: A video file, or a folder of pictures in order.
            out: The HDF5 file to write (docs/data.md describes the layout).
            camera: The camera's pixels.
            fps: Frames per second of the scene: for a folder, and for slow motion. Default: the file's times.
            seed: Of the camera's noise.
            frames: Also write the video's frames, grey, as the camera's own.
            overwrite: Replace a target that exists.
        """
        counts = native.write_recording(
            simulated_packets(video, camera, fps=fps, seed=seed, keep_frames=frames),
            out,
            source_format="simulated",
            overwrite=overwrite,
        )
        print(f"wrote {out}")
        print(f"  {counts.events:,} events, {counts.frames:,} frames")

    _parse(simulate, "simulate", arguments)


def _train(words: list[str]) -> None:
    from ppln.engine import recipes

    task, *options = words or ["--help"]
    if task in ("-h", "--help"):
        print("usage: ppln train TASK [--recipe NAME] [--config FILE] [--resume] [OPTIONS] [--help]\n")
        for task in recipes.RECIPES:
            print(f"{task}, by recipe:")
            for name, line in recipes.describe(task):
                print(f"  {name:24}{line}")
        return

    from ppln.engine import arguments
    from ppln.engine.train import train

    settings, start = arguments.parse(task, options)

    trained = train(settings, resume=start.resume)
    if trained.first:
        values = ", ".join(f"{name} {value:.4g}" for name, value in trained.metrics.items())
        print(f"done: {trained.step} steps in {trained.out}; validation: {values}")


def _evaluate(arguments: list[str]) -> None:
    path, *options = arguments or ["--help"]
    if path in ("-h", "--help"):
        print("usage: ppln evaluate NETWORK [--split test] [--no-ema] [OPTIONS] [--help]\n")
        print("NETWORK: a run's folder, a checkpoint, a file of `ppln export`, or a name in the zoo")
        return

    from ppln.engine import results, trained

    network = trained.find(path, ema="--no-ema" not in options)
    how, task = results.parse(network, path, [word for word in options if word != "--no-ema"])
    found, folder = results.evaluate_network(network, task, how)
    if folder is not None:
        for name, value in found.metrics.items():
            print(f"{name:20}{value:.6g}")
        print(f"wrote {folder}")


def _compare(arguments: list[str]) -> None:
    from ppln.engine import compare

    def run(ours: tuple[Path, ...], theirs: tuple[Path, ...], metric: str | None = None) -> None:
        """Compare two methods on the same samples, over seeds: intervals and paired tests.

        Args:
            ours: Folders that `ppln evaluate` wrote, one for each seed of a method.
            theirs: The same for another method.
            metric: Only this one. Default: all that both have.
        """
        print(compare.table(compare.compare(list(ours), list(theirs), metric)))

    _parse(run, "compare", arguments, positional=False)


def _export(arguments: list[str]) -> None:
    from ppln.engine.export import export

    def run(
        source: Path,
        out: Path,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        ema: bool = True,
    ) -> None:
        """Write a trained network for use: .safetensors (small, with its card), .onnx or .pt2 (torch.export).

        Args:
            source: A run's folder, one of its checkpoints, or a .safetensors file that this command wrote.
            out: The file to write; its suffix says what.
            dtype: Of the weights in a .safetensors file.
            ema: Take the running average of the weights where the run kept one.
        """
        made = export(source, out, dtype=dtype, ema=ema)
        print(f"wrote {made.path}, {made.size_bytes / 2**20:.1f} MiB")
        print(f"checked: it differs from the network by {made.difference:.1e} of the largest output, at most")

    _parse(run, "export", arguments)


_COMMANDS = {
    "train": ("train a network for deblurring, steering or pose; or go on with a run", _train),
    "evaluate": ("metrics of a trained network on a data set, into files", _evaluate),
    "compare": ("two methods over seeds: intervals and paired tests", _compare),
    "export": ("a trained network as one small file, ONNX or torch.export", _export),
    "info": ("what is in a recording, as text and as a picture", _info),
    "convert-recording": ("any known format into one HDF5 layout", _convert),
    "simulate": ("what an event camera would have recorded of a video", _simulate),
    "bench": ("time and memory of the node, a layer or a network against their alternatives", _bench),
}
