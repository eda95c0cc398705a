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
        print("Networks for event cameras: sharp films of blurry recordings, steering, pose.\n")
        for command, (what, _) in _COMMANDS.items():
            print(f"  {command:19}{what}")
        print("\n`ppln COMMAND --help` tells the options of a command, and `ppln --version` the version.")
        print("An error is one line; with --debug, it also tells where in the code it arose.")
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
        return f"{text}; run: pip install 'ppln[all]'", 1
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
        their exposures. For example: ppln deblur recording.aedat4 -o sharp.mp4

        Args:
            recording: A recording with events and frames: a file, or a folder. `ppln info` tells what is in
                it.
            out: The film to write, film.mp4, with the times of its frames in film.times.csv; or film.gif; or
                a folder, for PNG files. Default: none, but then --compare must be given.
            compare: The film to write in which the blurry frames are beside the sharp ones. Default: none.
            edi: Show the frames of EDI, too, in the film of --compare: a method that is not learnt, but
                integrates the events.
            network: The network to use: a name that `ppln models` lists, the folder of a training or of one
                of its checkpoints, or a .safetensors file of `ppln export`.
            frame: Instead of a recording, one blurry picture; it needs --events and --exposure-us. Default:
                none.
            events: The recording whose events belong to --frame. Default: none.
            exposure_us: When an exposure begins and ends, in microseconds after the time stamp of its frame;
                with --frame, on the clock of the recording. Default: as the file tells.
            frames: Only these blurry frames, counted from 0. Default: all.
            fps: Sharp frames per second of the recorded scene, but at least one for each blurry frame.
                Default: 14 for each blurry frame.
            play_fps: How many frames per second the film plays.
            project: Correct the sharp frames of an exposure so that their mean is the blurry frame.
            keep_hot_pixels: Keep the events of faulty pixels, which fire ten times as often as their
                neighbours; they are left out otherwise.
            tile: Restore the picture in square tiles of so many pixels a side, a multiple of 16 from 128 on,
                to save memory. Default: only where it is large, or memory is short.
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

        import torch

        from ppln import restore
        from ppln.engine import trained

        # What can be told before anything is read or written.
        where = device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        if where == "cuda" and not torch.cuda.is_available():
            raise ValueError("device is 'cuda', but torch sees no GPU here; use --device cpu")
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
            taken = None if frame is None else restore.picture_frame(frame)
            try:
                needed = read_excerpt(
                    source,
                    frames=frames,
                    picture=taken,
                    keep_hot_pixels=keep_hot_pixels,
                    progress=progress,
                    **options,
                )
                if left_out := needed.of_hot_pixels:
                    note = f"left out: {left_out:,} of {needed.of_events:,} events, those of hot pixels"
                    print(f"note: {note}; --keep-hot-pixels keeps them", file=sys.stderr)
                plan = restore.plan(needed, frames=frames, exposure_us=exposure_us, fps=fps)
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
        off = f"{255 * work.deviation:.2g} / 255"
        print(f"the mean of 14 frames over an exposure is within {off} of the blurry one, before rounding")

    _parse(deblur, "deblur", arguments, positional=False)


def _prepare(words: list[str]) -> None:
    from ppln.datasets import hqf
    from ppln.datasets.prepare import Done, Summary, prepare
    from ppln.datasets.windows import SPLITS, Split
    from ppln.events.io import printable
    from ppln.progress import Progress

    what, *arguments = words or ["--help"]
    cores = os.cpu_count() or 1

    def make(raw: Any, out: Path, *, verify: bool, **options: Any) -> Summary:
        with Progress("prepare") as progress:

            def report(done: Done, number: int, total: int) -> None:
                entry, how = done.entry, "made" if done.made else "there already"
                counts = f"{entry.windows:,} windows, {entry.events:,} events"
                print(f"{number}/{total} {done.name}: {counts} ({how}, {done.seconds:.1f} s)", flush=True)
                progress("recordings", number, total)

            progress("recordings", 0)
            summary = prepare(raw, out, verify=verify, progress=report, **options)
        for path in summary.ignored:
            print(f"not a recording: {printable(str(path))}")
        manifest = summary.manifest
        counts = [(of, sum(len(manifest.part(n, of)) for n in manifest.recordings)) for of in SPLITS]
        print(f"wrote {out}: {len(manifest.recordings)} recordings")
        print("windows: " + ", ".join(f"{split} {count:,}" for split, count in counts))
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
        """Cut the 14 recordings of the data set HQF into windows to train and evaluate deblurring on. A
        window is 14 sharp frames, whose mean is the blurry one, and the events in between.

        Args:
            raw: The folder with HQF's files, NAME.bag.
            out: The folder to write to. What an interrupted command has finished is kept.
            partial: Do without files that are missing.
            workers: How many recordings to work on at a time, each in a process of its own.
            verify: In the end, read all files again and compare them with the recordings.
            overwrite: Make all files again.
        """
        bags = hqf.find_bags(raw, partial=partial)
        summary = make(bags, out, protocol="hqf", workers=workers, verify=verify, overwrite=overwrite)
        missing = [name for name in hqf.NAMES if name not in summary.manifest.recordings]
        if missing:
            print(f"missing: {', '.join(missing)}")

    def of_recordings(
        raw: tuple[Path, ...],
        out: Path,
        use: Split = "test",
        frames_per_blur: int = hqf.FRAMES_PER_BLUR,
        workers: int = cores,
        verify: bool = False,
        overwrite: bool = False,
    ) -> None:
        """Cut recordings with events and sharp grey frames into windows to train and evaluate deblurring on.
        A window is some frames, whose mean is the blurry one, and the events in between.

        Args:
            raw: Recordings of any known format, or folders of them.
            out: The folder to write to. What an interrupted command has finished is kept.
            use: What these recordings are for: training, validation or testing. time: all three, one part
                of each recording after the other, the first for training; it needs 5 windows.
            frames_per_blur: How many sharp frames a window has; networks are trained with 14.
            workers: How many recordings to work on at a time, each in a process of its own.
            verify: In the end, read all files again and compare them with the recordings.
            overwrite: Make all files again.
        """
        options = {"split": use, "frames_per_blur": frames_per_blur, "workers": workers}
        make(raw, out, verify=verify, overwrite=overwrite, **options)

    commands: dict[str, Callable[..., None]] = {"hqf": of_hqf, "recordings": of_recordings}
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
        """List the networks there are. A name begins with what the network is for: deblur, steering or pose.

        Args:
            name: Print all that is known of this network: what it takes and gives, its options, how it was
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

        Args:
            recording: The recording: a file, or a folder.
            plot: Also draw it, as this PNG, JPEG, SVG or PDF file. Default: draw nothing.
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
        """Write a recording of any known format as one HDF5 file (docs/data.md describes what is in it).

        Args:
            recording: The recording: a file, or a folder.
            out: The HDF5 file to write.
            verify: Then read both again and compare all numbers that were written.
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
        """Write the recording that an event camera would have made of a video.

        Args:
            video: A video file, or a folder of pictures, taken in the order of their names.
            out: The HDF5 file to write (docs/data.md describes what is in it).
            camera: The pixels of the camera.
            fps: Frames per second of the filmed scene; a folder needs it, and a video in slow motion.
                Default: as the video tells.
            seed: Seed of the camera's noise.
            keep_frames: Also write the frames of the video, in grey, as the camera's own.
            blur: Make each of them the mean of so many frames of the video, for `ppln deblur`. With 1 they
                stay sharp.
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
            "--recipe NAME; `ppln train TASK --recipe NAME --help` lists them all, and how to change them.\n"
        )
        for task in recipes.RECIPES:
            print(f"Recipes of the task {task}: {TASKS[task].__doc__}")
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
            add: More study.json files, which this command wrote elsewhere: what is in them counts as done.
                With --tune: they have trainings in full, which decide between rates that are close. Default:
                none.
            page: Put the tables into this page of Markdown, between its lines <!-- study NAME --> and
                <!-- end -->. Default: print them.
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

        Args:
            ours: Folders that `ppln evaluate` wrote, one for each training of a method with another seed.
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
        """Write a trained network as one file.

        Args:
            network: The folder of a training or of one of its checkpoints, or a .safetensors file that this
                command wrote.
            out: The file to write: .safetensors, which ppln reads, .onnx, or .pt2, of torch.export.
            dtype: The type of the weights in a .safetensors file; 16 bits make it half as large.
            ema: Take the running average of the weights, where the training kept one (`ppln train --ema`).
            overwrite: Replace a file that exists.
        """
        made = export(network, out, dtype=dtype, ema=ema, overwrite=overwrite)
        print(f"wrote {made.path}, {made.size_bytes / 2**20:.1f} MiB")
        print(f"checked: it differs from the network by {made.difference:.1e} of the largest output, at most")

    _parse(run, "export", arguments)


_COMMANDS = {
    "demo": ("see what it does: a simulated blurry recording made sharp, as a page to open", _demo),
    "deblur": ("make a sharp film of a recording's blurry frames", _deblur),
    "info": ("tell what is in a recording, as text and as a picture", _info),
    "convert-recording": ("write a recording of any known format as one HDF5 file", _convert),
    "simulate": ("write what an event camera would have recorded of a video", _simulate),
    "models": ("list the networks there are, or tell all about one", _models),
    "prepare": ("cut recordings into samples to train and evaluate deblurring on", _prepare),
    "train": ("train a network for deblurring, steering or pose, or go on with a training", _train),
    "evaluate": ("measure how good a network is on data whose truth is known", _evaluate),
    "compare": ("tell how far two methods differ, and how certain that is", _compare),
    "export": ("write a trained network as one file, for ppln, ONNX or torch.export", _export),
    "reproduce": ("train and evaluate all that docs/results.md compares, in portions", _reproduce),
    "bench": ("time layers and networks, and their memory, against the alternatives", _bench),
}
