"""The studies of steering: every row of the paper's tables, plain twins, votes of rows, ablations.

There are two, of the same rows: on synthetic drives by day and at night, and on the video of a small car that
a person steers. Learning rates of the latter are those that `ppln reproduce STUDY --tune` chose for each; of
synthetic drives they are not searched yet.
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
_ON_ROWS = ("votes", "votes-plain", "rows", "rows-plain-10", "rows-plain-t")
_KINDS = ("frames", "degrees")  # of the main rows, with rates of their own
_SEARCHED = (*_MAIN, *_TWINS, *_ON_ROWS, *(f"{key}-{kind}" for kind in _KINDS for key in _MAIN))
_TITLES = {
    "hu": "Hu: one row",
    "humod": "HuMod: ten rows, ten outputs",
    "ppln": "PPLN",
    "plain-10": "plain twin, ten outputs",
    "plain-t": "plain twin, told t",
    "votes": "PPLN with votes of rows",
    "votes-plain": "plain twin with votes of rows",
    "rows": "PPLN on rows",
    "rows-plain-10": "plain twin on rows, ten outputs",
    "rows-plain-t": "plain twin on rows, told t",
}
_NETWORKS = {  # where they are not called as rows are
    **{"votes": "ppln-votes", "votes-plain": "plain-votes", "rows": "ppln-rows"},
    **{"rows-plain-10": "plain-rows-10", "rows-plain-t": "plain-rows-t"},
}
_UNIT: Settings = {"unit_deg": 15}
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


def _row(key: str, of: str, title: str, rate: float, options: Settings, **task: Any) -> Row:
    """of: the row that it changes, or the same."""
    given: dict[str, Any] = {**_UNIT, **({"stride": 2} if of in _ON_ROWS else {}), **options}
    if "inputs" in task:
        given["inputs"] = task["inputs"]
    if of == "hu":  # each angle costs a pass of its own
        task["times_per_sample"] = 2
    return Row(
        key,
        title,
        f"steering-{_NETWORKS.get(of, of)}",
        given,
        task,
        {"learning_rate": rate},
        dict(zip(_FIGURES, _PAPER.get(key, ()), strict=False)),
    )


def _rows(rate: Mapping[str, float]) -> tuple[Row, ...]:
    """Those that change a row have its rate, if they have none of their own."""

    def changed(of: str, end: str, title: str, options: Settings | None = None, **task: Any) -> Row:
        key = f"{of}-{end}"
        return _row(key, of, f"{_TITLES[of]}, {title}", rate.get(key, rate[of]), options or {}, **task)

    return (
        *(_row(key, key, _TITLES[key], rate[key], {}) for key in (*_MAIN, *_TWINS, *_ON_ROWS)),
        *(
            changed(key, inputs, f"{inputs} only", inputs=inputs)
            for inputs in ("frames", "events")
            for key in _MAIN
        ),
        *(changed(key, "degrees", "outputs in degrees", {"unit_deg": 1}) for key in _MAIN),
        changed("ppln", "no-normalization", "not normalised", {"normalize": False}),
        changed("ppln", "no-smoothing", "not smoothed", {"temperature": None}),
        changed("ppln", "released", "as in the released code", {"semantics": "released"}),
        *(changed("ppln", f"segments-{n}", f"n = {n}", {"segments": n}) for n in _SEGMENTS),
        *(changed("ppln", f"group-{n}", f"groups of {n} rows", {"group": n}) for n in _GROUPS),
        *(
            changed(key, "every-2", f"{title}every second row", options, train_every=2)
            for key, title, options in (
                ("humod", "five of them, ", {"outputs": 5}),
                ("plain-10", "five of them, ", {"outputs": 5}),
                ("rows-plain-10", "five of them, ", {"outputs": 5}),
                *((key, "", {}) for key in ("plain-t", "ppln", "rows-plain-t", "votes-plain", "votes")),
            )
        ),
    )


def _claims(name: str) -> tuple[Claim, ...]:
    def better(ours: str, theirs: str, metric: str = "rmse_deg") -> Claim:
        return Claim(ours, theirs, name, metric)

    kinds = ("", *(f"-{kind}" for kind in _KINDS))
    return (
        *(better(f"ppln{kind}", f"{other}{kind}") for kind in kinds for other in ("humod", "hu")),
        *(better(f"humod{kind}", f"hu{kind}") for kind in kinds),
        *(better("ppln", other, "eva") for other in ("humod", "hu")),
        *(better("ppln", twin) for twin in _TWINS),
        *(
            better(ours, other)
            for ours in ("votes", "rows")
            for other in (*_TWINS, "rows-plain-10", "rows-plain-t", *_MAIN)
        ),
        better("votes", "votes-plain"),
        better("votes", "rows"),
        better("ppln", "ppln-no-normalization"),
        better("ppln", "ppln-no-smoothing"),
        better("ppln", "ppln-released"),
        *(
            better(f"{ours}-every-2", f"{other}-every-2", "rmse_deg_between")
            for ours, others in (
                ("ppln", ("humod", *_TWINS)),
                ("votes", ("humod", *_TWINS, "rows-plain-10", "rows-plain-t", "votes-plain")),
            )
            for other in others
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
    batch: int,
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
                **{"optimizer": "adam", "weight_decay": 1e-4, "batch": batch, "steps": 1500},
                **{"schedule": "cosine", "warmup_steps": 75, "ema": 0.0},
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
            Table("A trunk for every row", ("rows-plain-10", "rows-plain-t", "rows", "votes-plain", "votes")),
            Table("Outputs in degrees, as in the paper", tuple(f"{key}-degrees" for key in _MAIN)),
            Table("Normalisation and smoothing", ("ppln-no-normalization", "ppln-no-smoothing", "ppln")),
            Table("As in the released code, and as in the paper", ("ppln-released", "ppln")),
            Table("Segments", ("ppln", *(f"ppln-segments-{n}" for n in _SEGMENTS))),
            Table("Rows that are read together", (*(f"ppln-group-{n}" for n in _GROUPS), "ppln")),
            Table(
                "Times in between: trained with the angles of every second row, tested at those between",
                (
                    *("humod-every-2", "plain-10-every-2", "plain-t-every-2", "ppln-every-2", "ppln"),
                    *("rows-plain-10-every-2", "rows-plain-t-every-2"),
                    *("votes-plain-every-2", "votes-every-2", "votes"),
                ),
            ),
        ),
        claims=_claims(data),
        seeds=(0, 1, 2, 3, 4),
        later={"inputs": "both", "times_per_sample": 10, "train_every": 1},
        frames="angles",
        units="RMSE in degrees",
        paper=paper,
        paper_data="DDD20",
        one_tailed=True,
        needs={"data/donkey": "`ppln prepare donkey --raw TUBS --out data/donkey` makes it (docs/data.md)"},
        search=Search(rows=_SEARCHED, rates=(1e-3, 3e-3), steps=500, note=SEARCH),
        title=title,
        about=about,
        note=note,
        words=words,
        method=METHOD,
        **more,
    )


_RATES = dict.fromkeys(_SEARCHED, 3e-3)
_DONKEY_RATES = {
    **_RATES,
    **dict.fromkeys(("hu", "hu-frames", "rows-plain-10"), 9e-3),
    **dict.fromkeys(("plain-10", "humod-frames", "ppln-frames"), 1e-3),
    **dict.fromkeys((f"{key}-degrees" for key in _MAIN), 1e-3),
}

DRIVING = _study(
    "steering",
    "driving",
    "The study of steering",
    ABOUT,
    NOTE,
    WORDS,
    "One budget: {train_samples:,} samples of {height} x {width}, {steps:,} steps of {batch}.",
    64,
    {
        **{"data": "driving", "height": 64, "width": 86},
        **{"train_samples": 4800, "val_samples": 240, "test_samples": 1200},
    },
    _RATES,
)
DONKEY = _study(
    "steering-donkey",
    "donkey",
    "The study of steering, on the video of a small car",
    ABOUT_DONKEY,
    NOTE_DONKEY,
    WORDS_DONKEY,
    "One budget: {steps:,} steps of {batch} windows.",
    128,
    {"data": "windows", "folder": "data/donkey"},
    _DONKEY_RATES,
    prepared={"protocol": "donkey, shrunk by 2", "seed": 0, "step": 2},
    prepare=PREPARE_DONKEY,
)
