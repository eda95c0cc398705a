"""What `ppln prepare` is given: recordings, folders of them, and data sets that should be whole."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ppln.events.io import regular


def find_sources(
    raw: Path | str | Sequence[Path], is_source: Callable[[Path], bool], kind: str, told: str = ""
) -> tuple[list[Path], list[Path]]:
    """Recordings, and what is in a folder with them and is none. A file that is given is taken for one.

    kind, told: what to call a recording, and to say of it where there is none
    """
    found: list[Path] = []
    ignored: list[Path] = []
    for path in map(Path, [raw] if isinstance(raw, str | Path) else raw):
        if not path.exists():
            raise FileNotFoundError(f"there is no {kind} {path}")
        if not path.is_dir() or is_source(path):
            found.append(path)
            continue
        inside = sorted(file for file in path.iterdir() if not file.name.startswith("."))
        sources = [file for file in inside if is_source(file)]
        if not sources:
            raise FileNotFoundError(
                f"there is no {kind} in the folder {path}; give one that holds some{told}"
            )
        found += sources
        ignored += [file for file in inside if file not in sources]
    if not found:
        raise ValueError(f"raw is empty; give one {kind} or more")
    return found, ignored


def find_folder(raw: Path | str, holds: str) -> Path:
    raw = Path(raw)
    if not raw.is_dir():
        raise FileNotFoundError(f"there is no folder {raw}; give the one that holds {holds}")
    return raw


def files_in(folder: Path) -> list[Path]:
    """All files in a folder and the folders in it, in order. Links are followed, each folder is read once."""
    found: list[Path] = []
    seen: set[str] = set()
    for place, inside, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:  # a link led here again
            inside.clear()
            continue
        seen.add(real)
        inside.sort()
        found += [Path(place, name) for name in files]
    return sorted(found)


def check_complete(
    raw: Path, dataset: str, items: str, found: int, missing: Sequence[str], example: str, partial: bool
) -> None:
    """An error, where items of a data set are missing; with partial, only where all are."""
    if not found:
        raise FileNotFoundError(
            f"{raw} holds none of {dataset}'s {items}, such as {example}; download them to it"
        )
    if missing and not partial:
        raise FileNotFoundError(
            f"{raw} lacks {len(missing)} of {dataset}'s {found + len(missing)} {items}: "
            f"{', '.join(missing)}; download them to it, or give partial=True to do without"
        )


def name_of(source: Path) -> str:
    return source.name if source.is_dir() else source.stem


def by_name(sources: Sequence[Path], name_of: Callable[[Path], str] = name_of) -> dict[str, Path]:
    """Recordings by name, the largest first: then several workers end at about the same time."""
    named: dict[str, Path] = {}
    for source in sources:
        if not source.is_dir():
            regular(source)
        name = name_of(source)
        if name in named:
            if source.resolve() == named[name].resolve():
                raise ValueError(f"raw: {source} is given twice")
            raise ValueError(f"raw: {named[name]} and {source} would both become {name}.h5; rename one")
        named[name] = source
    return dict(sorted(named.items(), key=lambda item: -item[1].stat().st_size))
