"""study.json: the results of a study, or of a portion of one; and portions put together.

study = merge([Path("a/study.json"), Path("b/study.json")])
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ppln.engine import stored
from ppln.engine.compare import TOLERANCE, other_fingerprint
from ppln.files import write_whole
from ppln.forms import NUMBER, SCALAR, Maybe, check_form, parse_json, read_bytes, shown
from ppln.models.networks import NETWORKS
from ppln.models.weights import plain_options

FILE = "study.json"
_FORMAT, _VERSION = "ppln study", 1
_HOW = (
    "seconds",
    "samples_per_s",
    "losses",
    "on",
    "about",
)  # of a training: how it went, and not what came out

Plain = dict[str, Any]

TRAINING = {
    "samples": int,
    **dict.fromkeys(("loss", "seconds", "samples_per_s"), float),
    "losses?": [float],
    "on": str,
    "validation?": {str: NUMBER},
    "about": {"git": Maybe({"revision": str, "dirty": bool}), "versions": {str: str}},
}
_TRAINED = {"task": {str: object}, "optimizer": {"learning_rate": float}}
_SET = {
    "settings": {str: object},
    "samples": int,
    "data": {str: [float]},
    "metrics": {str: NUMBER},
    "per_sample": {str: [NUMBER]},
    "parts?": {str: {str: {str: NUMBER}}},
}
_STUDY = {
    "study": str,
    "budget": {"task": {str: object}, "optimizer": {str: object}},
    "results": [
        {
            "row": str,
            "seed": int,
            "settings": {"model": {"name": str, "options": {str: SCALAR}}},
            "parameters": int,
            "training": Maybe(TRAINING),
            "sets": {str: _SET},
        }
    ],
}


def read(path: Path) -> Plain:
    """What the file has. Options that it does not tell, of a task or a network, have their defaults."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}; give a study.json that `ppln reproduce` wrote")
    try:
        study = parse_json(read_bytes(path), {"format": str, "version": int})
        found = study["format"], study["version"]
        if found != (_FORMAT, _VERSION):
            raise ValueError(f"it is {found[0]!r} of version {found[1]}, this ppln reads {_VERSION}")
        check_form(study, _STUDY)
        for result in study["results"]:
            _complete(result, study["study"])
        return {name: study[name] for name in _STUDY}
    except ValueError as error:
        raise ValueError(
            f"{path} is no study.json of `ppln reproduce` ({error}); move it away, or give another"
        ) from None


def _complete(result: Plain, task: str) -> None:
    """Fill in options that are not told, and raise unless its parts fit together."""
    settings, where = result["settings"], f"{result['row']}, seed {result['seed']}"
    if result["training"] is not None:  # a row that learns nothing has no task
        check_form(settings, _TRAINED, f"{where}: settings")
        settings["task"] = stored.with_defaults(task, settings["task"])
    model = settings["model"]
    if model["name"] in NETWORKS:
        model["options"] = plain_options(model["name"], model["options"])
    for name, of in result["sets"].items():
        of["settings"] = stored.with_defaults(task, of["settings"])
        for column, values in (*of["data"].items(), *of["per_sample"].items()):
            if len(values) != of["samples"]:
                raise ValueError(
                    f"{where}, {name}: {column} has {len(values)} values of {of['samples']} samples"
                )


def write(path: Path, study: Mapping[str, Any]) -> None:
    """It is there whole or not at all."""
    content = {"format": _FORMAT, "version": _VERSION, **stored.plain(study)}
    text = json.dumps(content, indent=1, allow_nan=False)
    text = re.sub(r"(?<=\[)[-+.\de,\s]+(?=\])", lambda found: " ".join(found[0].split()), text)  # in one line
    write_whole(path, text + "\n")


def merge(files: Sequence[Path]) -> Plain:
    """Several portions of one study as one. What they have of the same row and seed must agree: then the
    first is kept.

    Rows are in the order in which they come, and their seeds rise.
    """
    if not files:
        raise ValueError("files is empty; give one study.json or more")
    studies = [(str(path), read(Path(path))) for path in files]
    results: dict[tuple[str, int], tuple[str, Plain]] = {}
    rows: dict[str, tuple[str, Plain]] = {}
    sets: dict[str, tuple[str, Plain]] = {}
    first, reference = studies[0]
    for path, study in studies:
        _agree("study", first, path, _rounded(reference["study"], study["study"]))
        _agree("budget", first, path, budget_difference(reference["budget"], study["budget"], TOLERANCE))
        reference["budget"] = {**study["budget"], **reference["budget"]}
        for result in study["results"]:
            key, seed = result["row"], result["seed"]
            other, known = rows.setdefault(key, (path, result["settings"]))
            _agree(f"the settings of {key}", other, path, _rounded(known, result["settings"]))
            for set_name, of in result["sets"].items():
                other, known = sets.setdefault(set_name, (path, of))
                _agree(
                    f"the settings of {set_name}", other, path, _rounded(known["settings"], of["settings"])
                )
                if column := other_fingerprint(known["data"], of["data"]):
                    raise ValueError(
                        f"{other} and {path} have other samples in the test set {set_name}, by their "
                        f"{column}; they are no parts of one study, leave one out"
                    )
            if (key, seed) in results:
                other, known = results[key, seed]
                both = [name for name in result["sets"] if name in known["sets"]]
                found = difference(_outcome(known, both), _outcome(result, both), rounding=TOLERANCE)
                if found is not None:
                    raise ValueError(
                        f"{other} and {path} both have {key}, seed {seed}, done twice and with other "
                        f"results: {found}; leave one of the files out"
                    )
                new = {name: of for name, of in result["sets"].items() if name not in both}
                result = {**known, "sets": {**known["sets"], **new}}
            results[key, seed] = path, result
    order = {key: k for k, key in enumerate(rows)}
    ranked = sorted(results, key=lambda name: (order[name[0]], name[1]))
    return {**reference, "results": [results[name][1] for name in ranked]}


def difference(was: Any, now: Any, where: str = "", *, rounding: float = 0.0) -> str | None:
    """The first place where two values differ, numbers by more than so much, relatively."""
    if isinstance(was, dict) and isinstance(now, dict):
        found = (
            difference(was.get(k), now.get(k), f"{where}.{k}".strip("."), rounding=rounding)
            for k in {**was, **now}
        )
        return next((text for text in found if text is not None), None)
    if isinstance(was, float) and isinstance(now, float) and math.isclose(was, now, rel_tol=rounding):
        return None
    return None if was == now else f"{where} {shown(was)} and {shown(now)}".strip()


def _outcome(result: Plain, sets: Sequence[str]) -> Plain:
    """What came out of a training, and on these test sets."""
    training = {name: value for name, value in (result["training"] or {}).items() if name not in _HOW}
    return {"training": training, "metrics": {name: result["sets"][name]["metrics"] for name in sets}}


def budget_difference(was: Plain, now: Plain, rounding: float = 0.0) -> str | None:
    """As `difference`. How the data were made (`data`) not every file tells."""
    if "data" not in was or "data" not in now:
        was, now = ({name: value for name, value in of.items() if name != "data"} for of in (was, now))
    return difference(was, now, rounding=rounding)


def _rounded(was: Any, now: Any) -> str | None:
    return difference(was, now, rounding=TOLERANCE)


def _agree(what: str, path: str, other: str, found: str | None) -> None:
    """found: a difference."""
    if found is not None:
        raise ValueError(
            f"{path} and {other} differ in {what}: {found}; they are no parts of one study, leave one out"
        )
