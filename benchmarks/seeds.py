"""What seeds say of the deblurring study: how certain differences are, and what training again changes.

    python benchmarks/seeds.py rows benchmarks/results/study.json head-pp head-around head-plain-around
    git show c65b319:benchmarks/results/study.json > before.json
    python benchmarks/seeds.py again benchmarks/results/study.json before.json benchmarks/results/again.json

rows: the first against each of the others, by seeds that both have, with 95 % intervals (Student's t).
again: all that were trained twice; trainings that come out the same agree in every metric, to the last bit.
"""

import argparse
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ppln.engine.compare import estimate
from ppln.study import portions

SETS = ("scenes", "slider")
Key = tuple[str, int]  # row and seed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("rows", "again"))
    parser.add_argument("study", type=Path)
    parser.add_argument(
        "rest", nargs="+", help="rows: their keys; again: the study before, and a file to write"
    )
    given = parser.parse_args()
    study = trainings(given.study)
    if given.what == "rows":
        first, *others = given.rest
        for other in others:
            print(f"{first} - {other}:", *(differences(study, first, other, name) for name in SETS))
        return
    before, out = (Path(word) for word in given.rest)
    found = again(trainings(before), study)
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({kind: found[kind] for kind in ("heads", "others")}, indent=1))


def trainings(file: Path) -> dict[Key, dict[str, Any]]:
    return {(r["row"], r["seed"]): r for r in portions.read(file)["results"]}


def psnr(result: dict[str, Any], name: str) -> float:
    return result["sets"][name]["metrics"]["psnr"]


def differences(study: dict[Key, dict[str, Any]], row: str, other: str, name: str) -> str:
    def by_seed(key: str) -> dict[int, float]:
        return {seed: psnr(result, name) for (of, seed), result in study.items() if of == key}

    mine, theirs = by_seed(row), by_seed(other)
    if len(theirs) == 1:  # nothing is trained
        theirs = dict.fromkeys(mine, *theirs.values())
    values = [mine[seed] - theirs[seed] for seed in sorted(mine.keys() & theirs.keys())]
    mean, interval = fmean(values), estimate(values).interval
    by = " ".join(f"{value:+.2f}" for value in values)
    within = f" ({interval[0]:+.3f} to {interval[1]:+.3f})" if interval else ""
    return f" {name} {mean:+.3f}{within} by seed {by};"


def again(before: dict[Key, dict[str, Any]], now: dict[Key, dict[str, Any]]) -> dict[str, Any]:
    twice = [
        key
        for key in before.keys() & now.keys()
        if before[key]["training"] and before[key]["training"]["about"] != now[key]["training"]["about"]
    ]
    kinds = {
        "heads": sorted(key for key in twice if key[0].startswith("head")),
        "others": sorted(key for key in twice if not key[0].startswith("head")),
    }
    lows = {"before": low_ends(before), "now": low_ends(now)}
    return {**{kind: summary(keys, before, now) for kind, keys in kinds.items()}, "low ends of heads": lows}


def low_ends(study: dict[Key, dict[str, Any]]) -> dict[str, float]:
    """dB on scenes below the mean of a row's other seeds, where they are more than half of one."""
    found = {}
    for (row, seed), result in sorted(study.items()):
        others = [psnr(r, "scenes") for (of, n), r in study.items() if of == row and n != seed]
        if row.startswith("head") and others and (low := fmean(others) - psnr(result, "scenes")) > 0.5:
            found[f"{row}, seed {seed}"] = low
    return found


def summary(
    keys: Sequence[Key], before: dict[Key, dict[str, Any]], now: dict[Key, dict[str, Any]]
) -> dict[str, Any]:
    same: dict[str, list[int]] = defaultdict(lambda: [0, 0])  # by commit: the same, and all
    moved, rows = [], defaultdict(list)
    for key in keys:
        old, new = before[key], now[key]
        is_same = all(old["sets"][n]["metrics"] == new["sets"][n]["metrics"] for n in old["sets"])
        git = old["training"]["about"]["git"]
        count = same[git["revision"][:7] + " with changes" * git["dirty"]]
        count[0], count[1] = count[0] + is_same, count[1] + 1
        change = [psnr(new, name) - psnr(old, name) for name in SETS]
        rows[key[0]].append(change)
        if not is_same:
            moved.append(change)
    columns = list(zip(*moved, strict=True))
    return {
        "trained twice": len(keys),
        "the same": len(keys) - len(moved),
        "the same, and all, by the commit before": dict(sorted(same.items())),
        "PSNR of the others, scenes and slider": {
            "mean change": [fmean(column) for column in columns],
            "root mean square": [math.sqrt(fmean(v * v for v in column)) for column in columns],
            "largest": [max(map(abs, column)) for column in columns],
            "up": [sum(v > 0 for v in column) for column in columns],
        },
        "mean change of rows": {
            row: [fmean(column) for column in zip(*changes, strict=True)] for row, changes in rows.items()
        },
    }


if __name__ == "__main__":
    main()
