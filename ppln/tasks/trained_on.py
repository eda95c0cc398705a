"""What a network was trained on, as its card tells."""

import re
from pathlib import Path
from typing import NamedTuple

from ppln.datasets.drives import DriveManifest
from ppln.events.events import Sensor
from ppln.models.weights import Card

SYNTHETIC = {"driving": "synthetic drives", "people": "synthetic people"}
SIZE = "height", "width"


class Training(NamedTuple):
    data: str  # in words
    size: Sensor | None  # of pictures; None: not known


def training(card: Card) -> Training:
    """Of a network for steering or pose."""
    found = re.fullmatch(r"(?:steering|pose): (\w+) \((.*)\)", card.data)
    if found is None:
        return Training(card.data or "nothing that is known", None)
    settings = dict(one.partition("=")[::2] for one in found[2].split(", "))
    folder = Path(settings.get("folder", ""))
    if found[1] != "windows":
        size = Sensor(*(int(settings[name]) for name in SIZE)) if settings.keys() >= set(SIZE) else None
        return Training(_words(found[1], folder.name, Path(settings.get("motions", "None")).name), size)
    try:
        drives = DriveManifest.read(folder)
    except (OSError, ValueError):  # it is not here any more
        return Training(f"windows of real drives ({folder.name})", None)
    size = next(Sensor(of.height, of.width) for of in drives.recordings.values())
    return Training(f"windows of real drives ({drives.protocol}, {folder.name})", size)


def _words(data: str, folder: str, motions: str) -> str:
    if data not in SYNTHETIC:
        return f"{data} ({folder})"
    return f"{SYNTHETIC[data]} ({data}{'' if motions == 'None' else f', motions of {motions}'})"
