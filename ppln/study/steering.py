"""The studies of steering: every row of the paper's tables, plain twins, a trunk for every row, ablations.

There are two, of the same rows: on synthetic drives by day and at night, and on the video of a small car that
a person steers. Learning rates are those that `ppln reproduce STUDY --tune` chose for each.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ppln.study.rows import Claim, Column, Metric, Row, Search, Settings, Study, Table
from ppln.study.steering_text import (
    ABOUT,
    ABOUT_DONKEY,
    METHOD,
    NOTE,
    NOTE_DONKEY,
    PREPARE_DONKEY,
    SEARCH,
    WORDS,
    WORDS_DONKEY,
)

_MAIN = ("hu", "humod", "ppln")
_TWINS = ("plain-10", "plain-t")
_ROWS: Settings = {"stride": 2}
_SEGMENTS = (6, 9, 12)  # beside the 3 of "ppln"
_GROUPS = (2, 5)  # beside the 10 of "ppln"

# The paper's figures on DDD20: RMSE and EVA of all drives, then by day and at night.
_BY_LIGHT = ("rmse_deg_day", "rmse_deg_night", "eva_day", "eva_night")
_FIGURES = ("rmse_deg", "eva", *_BY_LIGHT)
_PAPER = {
    "hu": (
        *("4.55 ± 0.236", "0.845 ± 0.016"),
        *("5.71 ± 0.334", "3.05 ± 0.104", "0.713 ± 0.033", "0.940 ± 0.004"),
    ),
    "humod": (
        *("3.34 ± 0.048", "0.917 ± 0.003"),
        *("3.94 ± 0.069", "2.64 ± 0.036", "0.864 ± 0.005", "0.954 ± 0.001"),
    ),
    "ppln": (
        *("3.15 ± 0.081", "0.926 ± 0.004"),
        *("3.68 ± 0.150", "2.53 ± 0.040", "0.881 ± 0.010", "0.958 ± 0.001"),
    ),
    "hu-frames": ("5.53 ± 0.110", "0.771 ± 0.009"),
    "humod-frames": ("3.55 ± 0.154", "0.907 ± 0.007"),
    "ppln-frames": ("3.16 ± 0.130", "0.927 ± 0.005"),
    "ppln-no-normalization": ("3.82 ± 0.339", "0.897 ± 0.018"),
    "ppln-no-smoothing": ("3.07 ± 0.100", "0.930 ± 0.004"),
    "ppln-segments-6": ("3.23 ± 0.200", "0.923 ± 0.010"),
    "ppln-segments-9": ("3.44 ± 0.141", "0.913 ± 0.007"),
    "ppln-segments-12": ("3.34 ± 0.148", "0.917 ± 0.008"),
}


def _row(
    key: str, title: str, network: str, rate: float, options: Settings | None = None, **task: Any
) -> Row:
    given = {} if "inputs" not in task else {"inputs": task["inputs"]}
    if network == "hu":  # each angle costs a pass of its own
        task["times_per_sample"] = 2
    return Row(
        key,
        title,
        f"steering-{network}",
        {**given, **(options or {})},
        task,
        {"learning_rate": rate},
        dict(zip(_FIGURES, _PAPER.get(key, ()), strict=False)),
    )


def _rows(rate: Mapping[str, float]) -> tuple[Row, ...]:
    """Those that change one of the rows with a rate have its rate."""

    def ppln(key: str, title: str, task: Settings | None = None, **options: Any) -> Row:
        return _row(f"ppln-{key}", f"PPLN, {title}", "ppln", rate["ppln"], options, **(task or {}))

    titles = {"hu": "Hu: one row", "humod": "HuMod: ten rows, ten outputs", "ppln": "PPLN"}
    every: Settings = {"train_every": 2}
    halves: Settings = {"outputs": 5}
    return (
        *(_row(key, titles[key], key, rate[key]) for key in _MAIN),
        _row("plain-10", "plain twin, ten outputs", "plain-10", rate["plain-10"]),
        _row("plain-t", "plain twin, told t", "plain-t", rate["plain-t"]),
        _row("rows", "PPLN on rows", "ppln-rows", rate["rows"], _ROWS),
        _row(
            "rows-plain-10", "plain twin on rows, ten outputs", "plain-rows-10", rate["rows-plain-10"], _ROWS
        ),
        _row("rows-plain-t", "plain twin on rows, told t", "plain-rows-t", rate["rows-plain-t"], _ROWS),
        *(
            _row(f"{key}-{inputs}", f"{titles[key]}, {inputs} only", key, rate[key], inputs=inputs)
            for inputs in ("frames", "events")
            for key in _MAIN
        ),
        ppln("no-normalization", "not normalised", normalize=False),
        ppln("no-smoothing", "not smoothed", temperature=None),
        ppln("released", "as in the released code", semantics="released"),
        *(ppln(f"segments-{n}", f"n = {n}", segments=n) for n in _SEGMENTS),
        *(ppln(f"group-{n}", f"groups of {n} rows", group=n) for n in _GROUPS),
        _row(
            "humod-every-2", "HuMod, five outputs, every second row", "humod", rate["humod"], halves, **every
        ),
        _row(
            *("plain-10-every-2", "plain twin, five outputs, every second row", "plain-10"),
            *(rate["plain-10"], halves),
            **every,
        ),
        _row("plain-t-every-2", "plain twin, told t, every second row", "plain-t", rate["plain-t"], **every),
        ppln("every-2", "every second row", task=every),
    )


def _claims(name: str) -> tuple[Claim, ...]:
    def better(ours: str, theirs: str, metric: str = "rmse_deg") -> Claim:
        return Claim(ours, theirs, name, metric)

    kinds = ("", "-frames")
    return (
        *(better(f"ppln{kind}", f"{other}{kind}") for kind in kinds for other in ("humod", "hu")),
        *(better(f"humod{kind}", f"hu{kind}") for kind in kinds),
        *(better("ppln", other, "eva") for other in ("humod", "hu")),
        *(better("ppln", twin) for twin in _TWINS),
        *(better("rows", other) for other in (*_TWINS, "rows-plain-10", "rows-plain-t", *_MAIN)),
        better("ppln", "ppln-no-normalization"),
        better("ppln", "ppln-no-smoothing"),
        better("ppln", "ppln-released"),
        *(
            better("ppln-every-2", other, "rmse_deg_between")
            for other in ("humod-every-2", "plain-10-every-2", "plain-t-every-2")
        ),
    )


def _study(
    name: str,
    data: str,
    title: str,
    about: str,
    note: str,
    words: str,
    budget: str,
    task: Settings,
    rate: Settings,
    **more: Any,
) -> Study:
    """name: of the study; data: of its test set."""
    by_light = _BY_LIGHT if data == "driving" else ()
    paper = ("rmse_deg", "eva", *by_light)
    return Study(
        name=name,
        settings={
            "task": {"name": "steering", **task},
            "optimizer": {
                **{"optimizer": "adam", "weight_decay": 1e-4, "batch": 64, "steps": 1200},
                **{"schedule": "cosine", "warmup_steps": 60, "ema": 0.0},
            },
            "machine": {"precision": "bf16", "channels_last": True, "keep_samples": True},
        },
        budget=budget,
        sets={data: {}},
        metrics={
            "rmse_deg": Metric("RMSE", 2, "lower"),
            "eva": Metric("EVA", 3, "higher"),
            "rmse_deg_day": Metric("RMSE by day", 2, "lower"),
            "rmse_deg_night": Metric("RMSE at night", 2, "lower"),
            "eva_day": Metric("EVA by day", 3, "higher"),
            "eva_night": Metric("EVA at night", 3, "higher"),
            "rmse_deg_between": Metric("RMSE between rows", 2, "lower"),
        },
        columns=tuple(Column(metric, data) for metric in ("rmse_deg", "eva", *by_light, "rmse_deg_between")),
        rows=tuple(
            replace(row, paper={name: row.paper[name] for name in paper if name in row.paper})
            for row in _rows(rate)
        ),
        tables=(
            Table("The paper's networks", _MAIN),
            Table("Frames only", tuple(f"{key}-frames" for key in _MAIN)),
            Table("Events only", tuple(f"{key}-events" for key in _MAIN)),
            Table("Plain twins: the same trunk, a plain head as large", ("plain-10", "plain-t", "ppln")),
            Table("A trunk for every row", ("rows-plain-10", "rows-plain-t", "rows")),
            Table("Normalisation and smoothing", ("ppln-no-normalization", "ppln-no-smoothing", "ppln")),
            Table("As in the released code, and as in the paper", ("ppln-released", "ppln")),
            Table("Segments", ("ppln", *(f"ppln-segments-{n}" for n in _SEGMENTS))),
            Table("Rows that are read together", (*(f"ppln-group-{n}" for n in _GROUPS), "ppln")),
            Table(
                "Times in between: trained with the angles of every second row, tested at those between",
                ("humod-every-2", "plain-10-every-2", "plain-t-every-2", "ppln-every-2", "ppln"),
            ),
        ),
        claims=_claims(data),
        seeds=(0, 1, 2, 3, 4),
        scales_warmup=False,
        later={"inputs": "both", "times_per_sample": 10, "train_every": 1},
        frames="angles",
        units="RMSE in degrees",
        paper=paper,
        paper_data="DDD20",
        one_tailed=True,
        needs={"data/donkey": "`ppln prepare donkey --raw TUBS --out data/donkey` makes it (docs/data.md)"},
        search=Search(
            rows=(*_MAIN, *_TWINS, "rows", "rows-plain-10", "rows-plain-t"),
            rates=(3e-4, 1e-3, 3e-3),
            steps=400,
            note=SEARCH,
        ),
        title=title,
        about=about,
        note=note,
        words=words,
        method=METHOD,
        **more,
    )


_RATES = dict.fromkeys((*_MAIN, *_TWINS, "rows", "rows-plain-10", "rows-plain-t"), 1e-3)

DRIVING = _study(
    "steering",
    "driving",
    "The study of steering",
    ABOUT,
    NOTE,
    WORDS,
    "One budget: {train_samples:,} samples of {height} x {width}, {steps:,} steps of {batch}.",
    {
        **{"data": "driving", "height": 64, "width": 86},
        **{"train_samples": 4800, "val_samples": 240, "test_samples": 1200},
    },
    {**_RATES, "humod": 3e-3},
)
DONKEY = _study(
    "steering-donkey",
    "donkey",
    "The study of steering, on the video of a small car",
    ABOUT_DONKEY,
    NOTE_DONKEY,
    WORDS_DONKEY,
    "One budget: {steps:,} steps of {batch} windows.",
    {"data": "windows", "folder": "data/donkey"},
    _RATES,
    prepared={"protocol": "donkey, shrunk by 2", "seed": 0, "step": 2},
    prepare=PREPARE_DONKEY,
)
