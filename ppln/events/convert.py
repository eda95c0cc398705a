"""A recording of any format into one HDF5 file: what `ppln convert-recording` does."""

from dataclasses import dataclass
from pathlib import Path

from ppln.errors import printable
from ppln.events.io import Options, listed, native
from ppln.progress import Screen


@dataclass(frozen=True)
class Convert:
    """Write a recording of any known format as one HDF5 file (docs/data.md describes what is in it). For
    example: ppln convert-recording recording.aedat4 recording.h5"""

    recording: Path
    """The recording: a file, or a folder."""
    out: Path
    """The HDF5 file to write."""
    verify: bool = True
    """Then read both files again and compare all numbers."""
    overwrite: bool = False
    """Replace a file that exists."""
    format: str | None = None
    """The format of the recording, such as aedat4; docs/howto-events.md lists them. Default: as its content
    tells."""
    reading: Options = Options()  # noqa: RUF009
    """How the recording is read."""


def run(how: Convert, screen: Screen) -> str:
    counts = native.convert(
        how.recording,
        how.out,
        format=how.format,
        options=how.reading,
        verify=how.verify,
        overwrite=how.overwrite,
        progress=screen.progress,
    )
    lines = [f"wrote {how.out}"]
    lines.append(f"  {counts.events:,} events, {counts.frames:,} frames, {counts.triggers:,} triggers")
    if counts.imu:
        lines.append(f"  {counts.imu:,} IMU samples")
    lines += [f"  {printable(name)}: {number:,} values" for name, number in counts.signals.items()]
    if counts.unread:
        lines.append(f"  not read: {printable(listed(counts.unread))}")
    if how.verify:
        kinds = [kind for kind in ("events", "frames", "triggers", "imu") if getattr(counts, kind)]
        compared = printable(", ".join(["sensor", *kinds, *counts.signals]))
        lines.append(f"verified: {compared}: as read again from both files, all numbers are equal")
    return "\n".join(lines)
