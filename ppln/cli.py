"""The command line: parse, call, print."""

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any


def main() -> None:
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print("usage: ppln COMMAND [--help]\n")
        for command, (what, _) in _COMMANDS.items():
            print(f"  {command:19}{what}")
    elif name not in _COMMANDS:
        sys.exit(f"ppln: there is no command {name!r}; there are: {', '.join(_COMMANDS)}")
    else:
        try:
            _COMMANDS[name][1](arguments)
        except (ValueError, OSError, ModuleNotFoundError) as error:
            sys.exit(f"ppln {name}: {error}")


def _parse(what: Callable[..., Any], name: str, arguments: list[str]) -> Any:
    """Call `what` with the options that its signature and docstrings describe."""
    try:
        import tyro
    except ModuleNotFoundError:
        sys.exit("ppln: the command line needs tyro; run: pip install 'tyro>=0.9'")
    config = tyro.conf.PositionalRequiredArgs, tyro.conf.OmitArgPrefixes
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


_COMMANDS = {
    "info": ("what is in a recording, as text and as a picture", _info),
    "convert-recording": ("any known format into one HDF5 layout", _convert),
    "simulate": ("what an event camera would have recorded of a video", _simulate),
    "bench": ("time and memory of the node, a layer or a network against their alternatives", _bench),
}
