"""Folders that `ppln prepare` made: what their manifest says, and their windows, read by number.

A folder holds manifest.json and, of each recording, NAME.h5; what is in these, see ppln.datasets.windows for
deblurring and ppln.datasets.drives for steering.
"""

import json
import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import MISSING, asdict, fields
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from ppln.datasets.source import check_split
from ppln.events.events import Sensor
from ppln.events.io.hdf5 import open_file
from ppln.forms import check_form, parse_json, read_bytes, read_json

MANIFEST = "manifest.json"


class FolderManifest(ABC):
    """What a folder holds: a dataclass of settings, and of `recordings`, its last field."""

    TASK: ClassVar[str]
    FORMAT: ClassVar[str]
    VERSION: ClassVar[int] = 1
    ENTRY: ClassVar[type[Any]]  # what is said of a recording: a dataclass, with `height` and `width`
    COMMANDS: ClassVar[str]  # that make such a {folder}

    recordings: dict[str, Any]

    @property
    @abstractmethod
    def about(self) -> str:
        """Its settings, in words."""

    @abstractmethod
    def part(self, name: str, wanted: str) -> range:
        """The windows of a recording in "train", "val" or "test", by their numbers."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        path = folder / MANIFEST
        try:
            content = parse_json(read_bytes(path), {"format": str, "version": int})
            there, wanted = (content.pop("format"), content.pop("version")), (cls.FORMAT, cls.VERSION)
            if there != wanted:
                raise ValueError(
                    f"it is {there[0]!r} of version {there[1]}, and {cls.TASK} reads {wanted[0]!r} of "
                    f"version {wanted[1]}"
                )
            check_form(content, {**_form(cls), "recordings": {str: _form(cls.ENTRY)}})
            recordings = {name: cls.ENTRY(**entry) for name, entry in content["recordings"].items()}
            return cls(**{**content, "recordings": recordings})
        except FileNotFoundError:
            raise FileNotFoundError(
                f"there are no prepared windows in {folder}; run: {cls.COMMANDS.format(folder=folder)}"
            ) from None
        except (ValueError, TypeError) as error:  # TypeError: there is more than these
            raise ValueError(
                f"{path} cannot be used ({error}); give another folder; one is made by: "
                f"{cls.COMMANDS.format(folder='FOLDER')}"
            ) from None

    def text(self) -> str:
        settings = asdict(self)  # type: ignore[call-overload]
        return json.dumps({"format": self.FORMAT, "version": self.VERSION, **settings}, indent=1) + "\n"


def told(kind: type[FolderManifest], folder: Path | None) -> dict[str, Any]:
    """What a card tells of a folder, if it is there: its protocol, and how large its pictures are."""
    try:
        manifest: Any = None if folder is None else kind.read(folder)
    except (OSError, ValueError):
        return {}
    first = next(iter(manifest.recordings.values()), None) if manifest else None
    size = {} if first is None else {"height": first.height, "width": first.width}
    return {"protocol": manifest.protocol, **size} if manifest else {}


def how_made(folder: Path) -> dict[str, Any]:
    """The settings in the manifest of a folder, of whatever task; nothing, where there is none."""
    path = folder / MANIFEST
    if not path.exists():
        return {}
    content = read_json(path, {str: object})
    return {name: value for name, value in content.items() if name not in ("format", "version", "recordings")}


def _form(kind: type[Any]) -> dict[str, Any]:
    """Of a dataclass; what has a default may be missing."""
    return {of.name + "?" * (of.default is not MISSING): of.type for of in fields(kind)}


M = TypeVar("M", bound=FolderManifest)


class PreparedWindows(ABC, Generic[M]):
    """The windows of a split. Files are opened where they are first read, in each process.

    recordings  the names of those with windows in this split
    """

    MANIFEST: ClassVar[type[Any]]

    def __init__(self, folder: Path | str, split: str) -> None:
        self.folder, self.split = Path(folder), split
        check_split(split)
        self.manifest: M = self.MANIFEST.read(self.folder)
        entries = self.manifest.recordings
        sizes = {name: Sensor(entry.height, entry.width) for name, entry in entries.items()}
        if len(set(sizes.values())) > 1:
            listed = ", ".join(f"{name} {size.height} x {size.width}" for name, size in sizes.items())
            raise ValueError(
                f"{self.folder} holds recordings of several sizes ({listed}); prepare them apart"
            )
        parts = {name: self.manifest.part(name, split) for name in entries}
        self.parts = {name: part for name, part in parts.items() if len(part)}
        self.recordings = tuple(self.parts)
        if not self.parts:
            raise ValueError(f"{self.folder} holds no windows of the split {split!r}{self.advice()}")
        self.size = sizes[self.recordings[0]]
        self.ends = list(accumulate(map(len, self.parts.values())))
        self._files: dict[str, Any] = {}
        self._process = os.getpid()

    @abstractmethod
    def advice(self) -> str:
        """What follows, where there are no windows of this split."""

    @abstractmethod
    def opened(self, name: str, file: Any) -> Any:
        """What to keep of the open file of a recording; an error, where it is not as the manifest says."""

    @abstractmethod
    def window(self, name: str, number: int, kept: Any) -> Any:
        """A window of a recording; kept: what `opened` gave."""

    def __len__(self) -> int:
        return self.ends[-1]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_files": {}}

    def place(self, index: int) -> tuple[str, int]:
        """The recording that a window is of, and its number there."""
        if not 0 <= index < len(self):
            raise IndexError(f"index is {index}; there are {len(self)} windows, from 0 on")
        k = bisect_right(self.ends, index)
        name = self.recordings[k]
        return name, self.parts[name][index - self.ends[k]]

    def read(self, index: int) -> Any:
        """A window, by its number in the split."""
        name, number = self.place(index)
        path = self.folder / f"{name}.h5"
        try:
            return self.window(name, number, self._kept(name, path))
        except FileNotFoundError:
            raise FileNotFoundError(f"there is no {path}; run ppln prepare again, which makes it") from None
        except (OSError, RuntimeError, LookupError, ValueError) as error:  # h5py raises any of them
            raise ValueError(
                f"{path} is damaged ({error}); run ppln prepare again with --overwrite"
            ) from error

    def _kept(self, name: str, path: Path) -> Any:
        """Of a file that this process opened: after a fork, two must not share one."""
        if self._process != os.getpid():
            self._files, self._process = {}, os.getpid()
        if name not in self._files:
            file = open_file(path)
            self._files[name] = file, self.opened(name, file)
        return self._files[name][1]
