"""What people do, by the names of their motions: classes of CMU's clips at hand, and the made gestures.

CMU's index describes a clip in words of its own ("walk, 90-degree right turn"); what is alike is put together
here. The numbers are those of a subject and of its clips.
"""

from ppln.datasets.synthetic.people.gestures import GESTURES

_MEASURED = {
    "walk": """02 01 02  07 01 02 03 04 06 07 08 09 10  08 01 02 03 05 06 07 09 10 11  10 04
        16 19 20 21 32 33 58  22 23 25  35 06 07 08 10 11 28 34  49 01  111 35 36""",
    "run": "02 03  09 02 04 05 06 07 08 09 10 11  16 36  35 19 25  49 05",
    "jump": "02 04  13 19 32 40 41  14 07  16 06 07  49 03  118 03 04 11 16 19 20 21 23 30",
    "jumping jacks": "13 30  22 15",
    "kick": "10 01 02 03 05 06",
    "punch": "02 05  86 01",
    "sword": "02 07 09",
    "wash": "02 10  14 12",
    "bend": "02 06  111 18",
    "climb": "13 35 37  14 21 22 33 34 35",
    "sit": "13 01  14 29  86 09",
    "balance": "49 15 19 20  111 38 40",
    "dance": "49 09 16 17",
    "stretch": "42 01",
    "act": "13 14  14 19  22 04 07 10 11 18 21  111 14 15 16 28",
}
MOVEMENTS = (*_MEASURED, *(f"made {name}" for name in GESTURES))  # an index is a movement's number


def _by_clip() -> dict[str, int]:
    clips: dict[str, int] = {}
    for number, listed in enumerate(_MEASURED.values()):
        for subject, *trials in (
            row.split() for row in listed.replace("\n", "  ").split("  ") if row.strip()
        ):
            clips |= {f"{subject}_{trial}": number for trial in trials}
    return clips


_CLIPS = _by_clip()


def movement_of(name: str) -> int:
    """The number of a motion's movement, by its name, of CMU or of a made one (NN_gesture); -1: not known."""
    gesture = f"made {name.partition('_')[2]}"
    return MOVEMENTS.index(gesture) if gesture in MOVEMENTS else _CLIPS.get(name, -1)
