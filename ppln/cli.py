"""The command line: parse, call, print."""

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import ppln
from ppln.options import HELP, POSITION, Help, ask, command

_ENDS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


def main() -> None:
    words = sys.argv[1:]
    debug = "--debug" in words
    name, *arguments = [word for word in words if word != "--debug"] or ["--help"]
    if name in HELP:
        print("usage: ppln COMMAND [OPTIONS]\n")
        print("Parametric piecewise linear networks (PPLN) for event cameras. There are three tasks: deblur,")
        print("a blurry recording made sharp; steering, the angle of a wheel; pose, a person's joints.\n")
        for command, (what, _) in _COMMANDS.items():
            print(f"  {command:19}{what}")
        print("\n`ppln COMMAND --help` tells the options of a command, and `ppln --version` the version.")
        print("To begin: `ppln demo`. An error is one line; with --debug, a traceback is printed, too.")
    elif name == "--version":
        print(f"ppln {ppln.__version__}")
    elif name not in _COMMANDS:
        sys.exit(f"ppln: there is no command {name!r}; there are: {', '.join(_COMMANDS)}")
    else:
        message, code = "", 0
        alone = threading.current_thread() is threading.main_thread()
        before = {number: signal.getsignal(number) for number in _ENDS}
        format_warning = warnings.formatwarning
        try:
            warnings.formatwarning = lambda message, *_: f"ppln {name}: {message}\n"
            _import_first(name)
            for number, was in before.items():
                if alone and was is not signal.SIG_IGN:  # as after nohup
                    signal.signal(number, _terminate)
            try:
                _COMMANDS[name][1](arguments)
            except Help as text:
                print(text)
            if sys.stdout is not None:  # it is closed, as by `>&-`
                sys.stdout.flush()
        except BrokenPipeError:  # nobody reads on, as of `ppln info FILE | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(141)
        except BaseException as error:
            message, code = _explain(error, name)
            if debug or not message:
                raise
            message = f"ppln {name}: {message}"
        finally:
            warnings.formatwarning = format_warning
            for number, was in before.items():
                if alone:
                    signal.signal(number, was)
        if "ppln.engine.fabric" in sys.modules:  # else there is one process
            from ppln.engine.fabric import leave

            leave(message, code)
        if code == 1:
            sys.exit(message)
        if code:
            print(message, file=sys.stderr)
            sys.exit(code)


class _Terminated(SystemExit):
    """By SIGTERM or a closed terminal. What was begun is cleared away, as it is after Ctrl-C."""


def _terminate(number: int, frame: Any) -> None:
    raise _Terminated(128 + number)


def _import_first(name: str) -> None:
    """What takes long to import. Meanwhile Ctrl-C ends the process at once: imports may swallow it."""

    def end(number: int, frame: Any) -> None:
        print(f"ppln {name}: interrupted", file=sys.stderr, flush=True)
        os._exit(130)

    alone = threading.current_thread() is threading.main_thread()
    alone = alone and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN  # as of `ppln ... &` in a script
    before = signal.signal(signal.SIGINT, end) if alone else None
    try:
        if name not in ("info", "convert-recording"):
            import torch  # noqa: F401
        if name in ("train", "evaluate", "reproduce"):
            with suppress(ModuleNotFoundError):  # it is told where it is needed
                import lightning_fabric  # noqa: F401
    finally:
        if alone:
            signal.signal(signal.SIGINT, before)


_LESS_MEMORY = {
    "train": "lower --batch, raise --accumulate, or use --precision bf16",
    "evaluate": "lower --batch, or use --precision bf16",
}


def _explain(error: BaseException, name: str) -> tuple[str, int]:
    """What went wrong and what to do, in a line, and the exit code; nothing for what nobody foresaw."""
    text = " ".join(str(error).split()).replace("overwrite=True", "--overwrite")
    if name == "prepare":
        text = (
            text.replace("partial=True", "--partial")
            .replace("frames_per_blur", "--frames-per-blur")
            .replace("split is", "--use is")
        )
    copy = "repair a copy: ppln convert-recording RECORDING OUT.h5 --repair"
    text = text.replace("read with repair=True", copy if name == "prepare" else "give --repair")
    if isinstance(error, ModuleNotFoundError) and "pip install" not in text:
        return f"{text}; run: pip install 'torch-ppln[all]'", 1
    if isinstance(error, ValueError | OSError | ModuleNotFoundError):
        return text, 1
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", 130
    if isinstance(error, _Terminated):
        return "terminated", cast(int, error.code)
    kind = type(error).__name__
    if kind == "Interrupted":  # by kind: what defines them takes seconds to import
        return text, error.code  # type: ignore[attr-defined]
    if kind == "NotFinite":
        return f"{text}: lower --learning-rate or --clip-norm, and --resume", 1
    if isinstance(error, MemoryError) and text:  # one of our own, which says what to do
        return text, 1
    if kind == "OutOfMemoryError" or isinstance(error, MemoryError) or "can't allocate memory" in text:
        advice = _LESS_MEMORY.get(name, "give it less at a time")
        return f"out of memory; {advice}" + f" ({text[:160]})" * bool(text), 1
    return "", 1


def _parse(what: Callable[..., Any], name: str, arguments: list[str], positional: bool = True) -> Any:
    """Call `what` with the options that its signature and docstrings describe."""
    return ask(what, f"ppln {name}", arguments, positional=positional)


def _bench(arguments: list[str]) -> None:
    from ppln import bench

    options = _parse(bench.Bench, "bench", arguments)
    out = options.out or Path("out") / f"bench-{options.what}.json"
    print(bench.table(bench.run(replace(options, out=out))))
    print(f"wrote {out}")


def _deblur(arguments: list[str]) -> None:
    from contextlib import ExitStack

    from ppln.events.excerpt import read_excerpt
    from ppln.events.io import Options, RecordingError, sources
    from ppln.events.picture import picture_frame
    from ppln.progress import Progress
    from ppln.report.film import Film, beside

    as_they_are = Options()

    def deblur(
        recording: Annotated[Path | None, POSITION] = None,
        out: Path | None = None,
        compare: Path | None = None,
        edi: bool = False,
        network: str = "deblur-ppln-head-small",
        frame: Path | None = None,
        events: Path | None = None,
        exposure_us: Annotated[tuple[int, int] | None, "BEGIN END"] = None,
        frames: tuple[int, ...] | None = None,
        fps: float | None = None,
        between: Literal["leave", "hold", "carry"] = "leave",
        play_fps: float = 25.0,
        project: bool = True,
        keep_hot_pixels: bool = False,
        tile: int | None = None,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        overwrite: bool = False,
        format: str | None = None,
        reading: Options = as_they_are,
    ) -> None:
        """Make a film of sharp frames out of the blurry frames of a recording and the events that fell into
        their exposures. For example: ppln deblur recording.aedat4 -o sharp.mp4 --frames 10 11 12

        Args:
            recording: A recording with events and frames: a file, or a folder. `ppln info` tells what is in
                it.
            out: The film of the sharp frames: a name that ends in .mp4 or .gif, or a folder, for PNG files.
                The times of its frames are written beside it, as film.times.csv beside film.mp4. Default:
                none, but then --compare must be given.
            compare: A second film, which shows the blurry frames and the sharp ones side by side. Default:
                none.
            edi: In the film of --compare, also show the frames of EDI, the event-based double integral,
                which needs no training.
            network: The network to use: the name of one for deblurring that `ppln models` marks as trained,
                the folder of a training or of one of its checkpoints, or a .safetensors file of `ppln
                export`.
            frame: Instead of a recording, one blurry picture; it needs --events and --exposure-us. Default:
                none.
            events: With --frame: the recording that has its events. Default: none.
            exposure_us: When an exposure begins and ends, in microseconds after the time stamp of its frame,
                so that 0 20000 is the 20 ms from there on; with --frame, on the clock of the recording.
                Default: as the file tells.
            frames: Only these blurry frames, counted from 0. Default: all.
            fps: Sharp frames for each second of an exposure, but at least one for each blurry frame; none
                between exposures, unless --between is given. Default: 14 for each blurry frame.
            between: With --fps, what the film shows of the time between exposures. leave: nothing. hold: the
                nearest sharp frame, repeated. carry: frames made of the sharp frames before and after and of
                the events between them.
            play_fps: How many frames per second the film plays, which makes it slow motion or not.
            project: Correct the sharp frames of an exposure so that their mean is the blurry frame.
            keep_hot_pixels: Keep the events of faulty pixels, which fire more than ten times as often as
                their neighbours. Without it, they are left out.
            tile: To save memory, restore pictures in square tiles of so many pixels a side: 128 or more, a
                multiple of 16. Default: in tiles only where the picture is large, or memory is short.
            device: Where to compute. auto: on a GPU (cuda) where there is one.
            overwrite: Replace films that exist.
            format: The format of the recording, such as aedat4. Default: as its content tells.
            reading: How the recording is read.
        """
        if (recording is None) == (frame is None) or (frame is None) != (events is None):
            raise ValueError(
                "give a RECORDING, or --frame PICTURE with --events FILE and --exposure-us BEGIN END"
            )
        if frame is not None and exposure_us is None:
            raise ValueError("--frame needs --exposure-us BEGIN END, as the events' file counts")
        if between != "leave" and (fps is None or frame is not None):
            raise ValueError(
                f"--between {between} is for the time between the exposures of a recording, and needs --fps; "
                "give both, or leave it out"
            )
        if out is None and compare is None:
            raise ValueError("nothing to write; give -o FILM, or --compare FILM, or both")
        if edi and compare is None:
            raise ValueError("--edi needs --compare FILM, where it is shown")
        if out is not None and compare is not None:
            places = out.resolve(), compare.resolve()
            if places[0] == places[1] or places[0] in places[1].parents or places[1] in places[0].parents:
                raise ValueError(
                    f"--out is {out} and --compare is {compare}, the same or one inside the other; "
                    "give two places"
                )

        from ppln import devices, restore
        from ppln.engine import trained

        # What can be told before anything is read or written.
        where = devices.choose(device)
        restore.check_fps(fps)
        net: Any = trained.find(network)
        work = restore.Restoration(net.net.to(where), [], project=project, tile=tile)
        options = {"format": format, "exposure_us": exposure_us, **asdict(reading)}
        source = cast(Path, events if recording is None else recording)
        inputs = [path for path in (frame, net.file) if path] + sources(source, format=format)

        with ExitStack() as films, Progress("deblur") as progress:
            how: dict[str, Any] = {"play_fps": play_fps, "overwrite": overwrite, "inputs": inputs}

            def film(option: str, path: Path | None) -> Film | None:
                try:
                    return None if path is None else films.enter_context(Film(path, **how))
                except ValueError as error:
                    raise ValueError(str(error).replace("path is", f"{option} is", 1)) from None

            sharp, both = film("--out", out), film("--compare", compare)
            taken = None if frame is None else picture_frame(frame)
            try:
                needed = read_excerpt(
                    source,
                    frames=frames,
                    picture=taken,
                    gaps=between == "carry",
                    keep_hot_pixels=keep_hot_pixels,
                    progress=progress,
                    **options,
                )
                if left_out := needed.of_hot_pixels:
                    note = f"left out: {left_out:,} of {needed.of_events:,} events, those of hot pixels"
                    print(f"note: {note}; --keep-hot-pixels keeps them", file=sys.stderr)
                plan = restore.plan(needed, frames=frames, exposure_us=exposure_us, fps=fps, between=between)
            except RecordingError:
                raise  # it names the file
            except ValueError as error:
                told = str(error).replace("exposure_us", "--exposure-us")
                raise ValueError(f"{recording or frame}: {told}") from None
            for reason in plan.left_out.values():
                print(f"left out: {reason.replace('exposure_us', '--exposure-us')}", file=sys.stderr)
            for shot in plan.shots:
                if shot.doubt:
                    print(f"note: {shot.doubt}", file=sys.stderr)
            if fps is not None and between == "leave" and plan.unexposed >= 0.005:
                note = f"{100 * plan.unexposed:.0f} % of the time from the first exposure to the last"
                fill = "--between carry or --between hold fills it"
                print(f"note: {note} lies between exposures and gets no frames; {fill}", file=sys.stderr)
            gaps = [shot.gap for shot in plan.shots if shot.gap is not None]
            if between == "carry" and (held := sum(gap.events is None for gap in gaps)):
                note = f"{held} of {len(gaps)} gaps between exposures have hardly an event, or last over 1 s"
                print(f"note: {note}; the nearest sharp frame is held there", file=sys.stderr)
            work.shots = plan.shots
            shown = {net.card.name: work}
            if edi:
                other: Any = trained.find("deblur-edi").net.to(where)
                shown = {"EDI": replace(work, network=other), **shown}
            total = len(work)
            progress("frames", 0, total)
            for done, found in enumerate(zip(*shown.values(), strict=True), start=1):
                time_us, picture, blurry = found[-1]
                if sharp is not None:
                    sharp.add(picture, time_us)
                if both is not None:
                    panels = {name: one.frame for name, one in zip(shown, found, strict=True)}
                    both.add(beside({"blurry": blurry, **panels}), time_us)
                progress("frames", done, total)
        for made in (sharp, both):
            if made is not None:
                print(f"wrote {made.path}: {made.frames:,} frames of {len(plan.shots):,} blurry ones")
        off = f"{255 * work.deviation:.2g} of 255 grey levels"
        print(f"check: the mean of an exposure's sharp frames differs from the blurry one by {off}, at most")

    _parse(deblur, "deblur", arguments, positional=False)


def _prepare(words: list[str]) -> None:
    from ppln.datasets import ddd20, donkey, hqf
    from ppln.datasets.drives import Drive
    from ppln.datasets.folders import Done, Summary
    from ppln.datasets.prepare import prepare
    from ppln.datasets.source import SPLITS
    from ppln.datasets.windows import Split
    from ppln.events.io import printable
    from ppln.progress import Progress
    from ppln.protocols import FRAMES

    what, *arguments = words or ["--help"]
    cores = os.cpu_count() or 1
    of_tubs, of_drives = donkey.DonkeyOptions(workers=cores), ddd20.Ddd20Options(workers=cores)

    def make(out: Path, verify: bool, work: Callable[..., Summary]) -> Summary:
        with Progress("prepare") as progress:

            def report(done: Done, number: int, total: int) -> None:
                entry, how = done.entry, "made" if done.made else "there already"
                counts = f"{entry.rows:,} rows" if isinstance(entry, Drive) else f"{entry.events:,} events"
                counts = f"{entry.windows:,} windows, {counts}"
                print(f"{number}/{total} {done.name}: {counts} ({how}, {done.seconds:.1f} s)", flush=True)
                progress("recordings", number, total)

            progress("recordings", 0)
            summary = work(progress=report)
        for path in summary.ignored:
            print(f"not a recording: {printable(str(path))}")
        manifest = summary.manifest
        counts = [(of, sum(len(manifest.part(n, of)) for n in manifest.recordings)) for of in SPLITS]
        total = f"{len(manifest.recordings)} recording{'s' * (len(manifest.recordings) != 1)}"
        print(f"wrote {out}: {total}; windows: " + ", ".join(f"{of} {n:,}" for of, n in counts))
        if verify:
            print("verified: every array equals what the sources give")
        return summary

    def of_hqf(
        raw: Path,
        out: Path = Path("data/hqf"),
        partial: bool = False,
        workers: int = cores,
        verify: bool = False,
        overwrite: bool = False,
    ) -> None:
        """Cut the 14 recordings of HQF, the High Quality Frames data set (Stoffregen et al. 2020), into
        windows to train and evaluate deblurring on. A window is one sample: 14 sharp frames, the truth; their
        mean, the blurry frame; and the events from the first to the last.

        Args:
            raw: The folder with HQF's ROS bags, NAME.bag, which you have to download yourself.
            out: The folder to write to. The same command goes on where an earlier one was interrupted.
            partial: Do without bags that are missing. Without it, they are an error.
            workers: How many recordings to work on at a time, each in a process of its own.
            verify: In the end, read all files again and compare them with the recordings.
            overwrite: Make all files again, also those that are there already.
        """
        bags = hqf.find_bags(raw, partial=partial)
        how: dict[str, Any] = {"workers": workers, "verify": verify, "overwrite": overwrite}
        summary = make(out, verify, lambda **k: prepare(bags, out, protocol="hqf", **how, **k))
        missing = [name for name in hqf.NAMES if name not in summary.manifest.recordings]
        if missing:
            print(f"missing: {', '.join(missing)}")

    def of_recordings(
        raw: tuple[Path, ...],
        out: Path,
        use: Split = "test",
        frames_per_blur: int = FRAMES,
        workers: int = cores,
        verify: bool = False,
        overwrite: bool = False,
    ) -> None:
        """Cut recordings with events and sharp grey frames into windows to train and evaluate deblurring on.
        A window is one sample: some sharp frames, the truth; their mean, the blurry frame; and the events
        from the first to the last. `ppln evaluate NETWORK --data windows --folder OUT` takes the folder, and
        so does `ppln train deblur`. For example: ppln prepare recordings --raw slider.zip -o data/slider

        Args:
            raw: Recordings of any known format, or folders of them.
            out: The folder to write to. The same command goes on where an earlier one was interrupted.
            use: What these recordings are for: training, validation or testing. time: for all three, the
                beginning of each recording for training, its end for testing; each needs 5 windows.
            frames_per_blur: How many sharp frames a window has; networks are trained with 14.
            workers: How many recordings to work on at a time, each in a process of its own.
            verify: In the end, read all files again and compare them with the recordings.
            overwrite: Make all files again, also those that are there already.
        """
        how: dict[str, Any] = {"workers": workers, "verify": verify, "overwrite": overwrite}
        options = {"split": use, "frames_per_blur": frames_per_blur, **how}
        make(out, verify, lambda **k: prepare(raw, out, **options, **k))

    def of_donkey(
        raw: tuple[Path, ...],
        out: Path,
        options: donkey.DonkeyOptions = of_tubs,
    ) -> None:
        """Cut Donkeycar tubs, video of a small car that a person steers, into windows to train and evaluate
        steering on, with the events that a camera would have seen. `ppln train steering --data windows
        --folder OUT` takes the folder. For example: ppln prepare donkey --raw tub -o data/tub

        Args:
            raw: Tubs of Donkeycar's version 1 or 2, packed HDF5 files, or folders of them.
            out: The folder to write to. The same command goes on where an earlier one was interrupted.
            options: How windows are made.
        """
        make(out, options.verify, lambda **k: donkey.prepare(raw, out, options, **k))

    def of_ddd20(raw: Path, out: Path = Path("data/ddd20"), options: ddd20.Ddd20Options = of_drives) -> None:
        """Cut 30 recordings of DDD20 (Hu et al. 2020), drives behind a windscreen with angles of the wheel,
        into windows to train and evaluate steering on. `ppln train steering --data windows --folder OUT`
        takes the folder.

        Args:
            raw: The folder with DDD20's recordings, exported (rec*_export.hdf5) or raw (rec*.hdf5), in it or
                in folders in it, which you have to download yourself.
            out: The folder to write to. The same command goes on where an earlier one was interrupted.
            options: How windows are made.
        """
        summary = make(out, options.verify, lambda **k: ddd20.prepare(raw, out, options, **k))
        if missing := ddd20.missing(summary.manifest):
            print(f"missing: {', '.join(missing)}")

    commands: dict[str, Callable[..., None]] = {
        "hqf": of_hqf,
        "recordings": of_recordings,
        "ddd20": of_ddd20,
        "donkey": of_donkey,
    }
    if what in HELP:
        helps = [command(of, f"ppln prepare {n}", positional=False).help() for n, of in commands.items()]
        print("\n\n".join(helps))
        return
    if what not in commands:
        raise ValueError(f"there is nothing to prepare called {what!r}; there are: {', '.join(commands)}")
    _parse(commands[what], f"prepare {what}", arguments, positional=False)


def _demo(arguments: list[str]) -> None:
    from ppln import demo

    options = _parse(demo.Demo, "demo", arguments)
    print(demo.text(demo.run(options)))
    print(f"wrote {options.out / 'demo.html'}: open it in a browser")


def _models(arguments: list[str]) -> None:
    from ppln.models import zoo

    def models(name: Annotated[str | None, POSITION] = None) -> None:
        """List the networks there are, or print all about one. A name begins with the task: deblur, steering
        or pose. For example: ppln models deblur-edi

        Args:
            name: Print all that is known of this network: its input and output, its options, how it was
                trained, its metrics. Default: list them all.
        """
        print(zoo.listing() if name is None else zoo.card(name).markdown())

    _parse(models, "models", arguments)


def _info(arguments: list[str]) -> None:
    from ppln.events.io import Options
    from ppln.report import recording as report

    as_they_are = Options()

    def info(
        recording: Path,
        plot: Path | None = None,
        overwrite: bool = False,
        format: str | None = None,
        reading: Options = as_they_are,
    ) -> None:
        """Print what is in a recording: sensor, events, rates, gaps, frames, triggers, signals, IMU samples.
        For example: ppln info recording.aedat4 --plot recording.png

        Args:
            recording: The recording: a file, or a folder.
            plot: Also draw its events, rates and frames, as this PNG, JPEG, SVG or PDF file. Default: draw
                nothing.
            overwrite: Replace a picture that exists.
            format: The format of the recording, such as aedat4. Default: as its content tells.
            reading: How the recording is read.
        """
        options = asdict(reading)
        if plot is not None:
            report.check_plot(plot, recording, format=format, overwrite=overwrite)
        summary = report.summarize(recording, format=format, **options)
        print(report.text(summary))
        if plot is not None:
            report.plot(summary, plot, overwrite=overwrite, **options)
            print(f"wrote {plot}")

    _parse(info, "info", arguments)


def _convert(arguments: list[str]) -> None:
    from ppln.events.io import Options, native, printable
    from ppln.progress import Progress
    from ppln.report.recording import listed

    as_they_are = Options()

    def convert(
        recording: Path,
        out: Path,
        verify: bool = True,
        overwrite: bool = False,
        format: str | None = None,
        reading: Options = as_they_are,
    ) -> None:
        """Write a recording of any known format as one HDF5 file (docs/data.md describes what is in it). For
        example: ppln convert-recording recording.aedat4 recording.h5

        Args:
            recording: The recording: a file, or a folder.
            out: The HDF5 file to write.
            verify: Then read both files again and compare all numbers.
            overwrite: Replace a file that exists.
            format: The format of the recording, such as aedat4. Default: as its content tells.
            reading: How the recording is read.
        """
        how: dict[str, Any] = {"format": format, "options": reading, "verify": verify}
        with Progress("convert-recording") as progress:
            counts = native.convert(recording, out, overwrite=overwrite, progress=progress, **how)
        print(f"wrote {out}")
        print(f"  {counts.events:,} events, {counts.frames:,} frames, {counts.triggers:,} triggers")
        if counts.imu:
            print(f"  {counts.imu:,} IMU samples")
        for name, number in counts.signals.items():
            print(f"  {printable(name)}: {number:,} values")
        if counts.unread:
            print(f"  not read: {printable(listed(counts.unread))}")
        if verify:
            kinds = [kind for kind in ("events", "frames", "triggers", "imu") if getattr(counts, kind)]
            compared = ", ".join(["sensor", *kinds, *counts.signals])
            print(f"verified: {printable(compared)}: as read again from both files, all numbers are equal")

    _parse(convert, "convert-recording", arguments)


def _simulate(arguments: list[str]) -> None:
    from ppln.events.camera import EventCamera
    from ppln.events.io import native
    from ppln.events.simulate import DVS
    from ppln.events.video import simulated_packets
    from ppln.progress import Progress

    def simulate(
        video: Path,
        out: Path,
        camera: EventCamera = DVS,
        fps: float | None = None,
        seed: int = 0,
        keep_frames: bool = True,
        blur: int = 1,
        overwrite: bool = False,
    ) -> None:
        """Write the recording that an event camera would have made of a video. Its pixels are those of the
        video, and between frames light changes evenly. For example: ppln simulate video.mp4 out.h5 --blur 14

        Args:
            video: A video file, or a folder of pictures, taken in the order of their names.
            out: The HDF5 file to write (docs/data.md describes what is in it).
            camera: The pixels of the camera.
            fps: How many frames of the video are one second of the scene. Give it for a folder of pictures,
                and for a video that plays in slow motion. Default: as the video tells.
            seed: Seed of the camera's noise, and of how its pixels differ.
            keep_frames: Also write frames, as a camera with both would: those of the video, in grey.
            blur: Make each frame that is written the mean of so many frames of the video, for `ppln deblur`.
                1: the frames of the video themselves, which are sharp.
            overwrite: Replace a file that exists.
        """
        how: dict[str, Any] = {"fps": fps, "seed": seed, "keep_frames": keep_frames, "blur": blur}
        with Progress("simulate") as progress:
            counts = native.write_recording(
                simulated_packets(video, camera, progress=progress, **how),
                out,
                source_format="simulated",
                overwrite=overwrite,
                inputs=[video],
            )
        print(f"wrote {out}")
        print(f"  {counts.events:,} events, {counts.frames:,} frames")

    _parse(simulate, "simulate", arguments)


def _train(words: list[str]) -> None:
    from ppln.engine import recipes
    from ppln.tasks import TASKS

    task, *options = words or ["--help"]
    if task in HELP:
        print("usage: ppln train TASK [OPTIONS]\n")
        print(
            "Train a network, or go on with a training (--resume). A recipe is a set of settings, chosen by"
        )
        print(
            "--recipe NAME, else small; `ppln train TASK --recipe NAME --help` lists its settings, each an\n"
            "option that changes it. For example: ppln train deblur --steps 500 --out runs/short\n"
        )
        for task in recipes.RECIPES:
            print(f"Recipes of {task}: {TASKS[task].__doc__}")
            for name, line in recipes.describe(task):
                print(f"  {name:24}{line}")
        return

    from ppln.engine import arguments
    from ppln.engine.train import train

    settings, start = arguments.parse(task, options)

    trained = train(settings, resume=start.resume, from_start=start.from_start)
    if trained.first:
        values = ", ".join(f"{name} {value:.4g}" for name, value in trained.metrics.items())
        print(f"done: {trained.step} steps in {trained.out}; validation: {values}")


def _evaluate(words: list[str]) -> None:
    from ppln.engine import results
    from ppln.progress import Progress

    source, *options = words or ["--help"]
    if source in HELP:
        print(results.usage())
        return
    network, task, how = results.parse(source, options)
    with Progress("evaluate") as progress:
        found, folder = results.evaluate_network(network, task, how, partial(progress, "samples"))
    if folder is not None:
        print("\n".join(filter(None, [results.text(found), results.beside(found), f"wrote {folder}"])))


def _reproduce(words: list[str]) -> None:
    from ppln.study import STUDIES

    name, *options = words or ["--help"]
    if name in HELP:
        print("usage: ppln reproduce STUDY [OPTIONS]\n")
        print("Train and evaluate all methods that a study compares, each a row of its tables.")
        print("`ppln reproduce STUDY --help` lists the options.\n")
        for study, about in STUDIES.items():
            print(f"Rows of the study {study}:")
            for row in about.rows:
                print(f"  {row.key:24}{row.title}")
        return
    if name not in STUDIES:
        raise ValueError(f"there is no study {name!r}; there are: {', '.join(STUDIES)}")

    from ppln.study import tables, tune
    from ppln.study.budget import Reproduce
    from ppln.study.portions import FILE
    from ppln.study.reproduce import reproduce

    as_it_is, say = Reproduce(Path(f"runs/reproduce-{name}")), partial(print, flush=True)

    def run(how: Reproduce = as_it_is, add: tuple[Path, ...] = (), page: Path | None = None) -> None:
        """Train and evaluate all methods that a study compares, each a row of its tables, but for those that
        are done already; then make the tables.

        Args:
            how: Options.
            add: More study.json files, which this command wrote elsewhere, as on another machine: what is in
                them counts as done. With --tune: they have trainings in full, which decide between rates that
                are close. Default: none.
            page: Put the tables into this page of Markdown, between its lines <!-- study NAME --> and
                <!-- end -->, in place of what is there. Default: print them.
        """
        if page is not None:
            tables.around(page, name)  # an error now, rather than after all trainings
        if how.tune and page is not None:
            raise ValueError(f"--page is {page}, but --tune makes no tables; leave it out")
        if how.tune:
            for key, taken in tune.tune(STUDIES[name], how, say, add).items():
                print(f"{key}: take {tune.line(taken)}")
            print(f"wrote {how.out / tune.FILE}")
            return
        done, found = reproduce(STUDIES[name], how, say, add)
        if page is None:
            print(tables.markdown(STUDIES[name], found))
        elif found["results"]:
            tables.put(page, STUDIES[name], found)
            print(f"wrote {page}")
        else:
            print(f"there are no results yet; {page} is left as it is")
        print(f"{len(done.now)} rows and seeds done now, {len(done.left)} left; wrote {how.out / FILE}")

    _parse(run, f"reproduce {name}", options)


def _compare(arguments: list[str]) -> None:
    from ppln.engine import compare

    def run(ours: tuple[Path, ...], theirs: tuple[Path, ...], metric: str | None = None) -> None:
        """Compare two methods on the same samples: how far they differ, and how certain that is, over samples
        and over trainings.
        For example: ppln compare --ours runs/a/evaluation/scenes-test --theirs runs/b/evaluation/scenes-test

        Args:
            ours: Folders of one method that `ppln evaluate` wrote. Where it was trained with several seeds,
                give the folder of each.
            theirs: The same for the other method.
            metric: Only this metric, such as psnr. Default: all that both have.
        """
        print(compare.table(compare.compare(list(ours), list(theirs), metric)))

    _parse(run, "compare", arguments, positional=False)


def _export(arguments: list[str]) -> None:
    from ppln.engine.export import export

    def run(
        network: Path,
        out: Path,
        dtype: Literal["float32", "bfloat16", "float16"] = "float32",
        ema: bool = True,
        overwrite: bool = False,
    ) -> None:
        """Write a trained network as one file. For example: ppln export runs/deblur-small deblur.onnx

        Args:
            network: The folder of a training or of one of its checkpoints, a .safetensors file that this
                command wrote, or the name of a network that `ppln models` marks as trained.
            out: The file to write. Its ending decides: .safetensors, which ppln reads; .onnx; or .pt2, of
                torch.export.
            dtype: The type of the weights in a .safetensors file; with 16 bits, it is half as large.
            ema: Take the running average of the weights, where the training kept one (`ppln train --ema`).
            overwrite: Replace a file that exists.
        """
        made = export(network, out, dtype=dtype, ema=ema, overwrite=overwrite)
        print(f"wrote {made.path}, {made.size_bytes / 2**20:.1f} MiB")
        print(
            f"check: its output differs from the network's by {made.difference:.1e} of the largest, at most"
        )

    _parse(run, "export", arguments)


_COMMANDS = {
    "demo": ("see what it does: a simulated blurry recording made sharp, as a page to open", _demo),
    "deblur": ("make a sharp film of a recording's blurry frames", _deblur),
    "info": ("tell what is in a recording, as text and as a picture", _info),
    "convert-recording": ("write a recording of any known format as one HDF5 file", _convert),
    "simulate": ("write what an event camera would have recorded of a video", _simulate),
    "models": ("list the networks there are, or tell all about one", _models),
    "prepare": (
        "cut recordings into samples to train and evaluate deblurring on",
        _prepare,
    ),
    "train": ("train a network for deblurring, steering or pose, or go on with a training", _train),
    "evaluate": ("measure how good a network is, on data whose truth is known", _evaluate),
    "compare": ("tell how far the results of two methods differ, and how certain that is", _compare),
    "export": ("write a trained network as one file, for ppln, ONNX or torch.export", _export),
    "reproduce": ("train and evaluate again all that docs/results.md compares", _reproduce),
    "bench": ("measure time and memory of layers and networks, beside the alternatives", _bench),
}
