"""What a network was trained on, as its card tells."""

import re
from pathlib import Path
from typing import NamedTuple

from ppln.events.events import Sensor
from ppln.models.weights import Card

SYNTHETIC = {"driving": "synthetic drives", "people": "synthetic people"}
REAL = {"steering": "drives", "pose": "movements"}
SIZE = "height", "width"
LARGEST = 1 << 13  # rows or columns of a picture
LONGEST = 1 << 12  # characters of what a card tells of data


class Training(NamedTuple):
    data: str  # in words
    size: Sensor | None  # of pictures; None: not known


def training(card: Card) -> Training:
    """Of a network for steering or pose."""
    task, data, settings = settings_told(card)
    if task not in REAL:
        return Training(_line(card.data) or "nothing that is known", None)
    sides = [settings.get(name, "") for name in SIZE]
    known = all(re.fullmatch(r"[0-9]{1,5}", side) and 0 < int(side) <= LARGEST for side in sides)
    size = Sensor(*map(int, sides)) if known else None
    folder = Path(settings.get("folder", "")).name
    if data == "windows":
        names = ", ".join(name for name in (settings.get("protocol"), folder) if name)
        return Training(f"windows of real {REAL[task]} ({names})", size)
    if data not in SYNTHETIC:
        return Training(f"{data} ({folder})", size)
    motions = Path(settings.get("motions", "")).name
    return Training(f"{SYNTHETIC[data]} ({data}{f', motions of {motions}' if motions else ''})", size)


def _line(text: str) -> str:
    """For tables and terminals: in one line, without characters that command either."""
    return " ".join("".join(c if c.isprintable() else " " for c in text[:LONGEST]).split()).lstrip("=+-@ ")


def settings_told(card: Card) -> tuple[str, str, dict[str, str]]:
    """The task, its data and settings, as engine.trained writes them."""
    found = re.fullmatch(r"(\w+): (\w+) \((.*)\)", _line(card.data))
    if found is None:
        return "", "", {}
    settings = dict(re.findall(r"(\w+)=(.*?)(?=, \w+=|$)", found[3]))
    return found[1], found[2], {name: value for name, value in settings.items() if value != "None"}
