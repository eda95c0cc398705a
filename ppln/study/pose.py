"""The studies of pose: every row of the paper's tables, plain rivals and twins, our candidates, ablations.

There are two, of the same rows: at full size, and at half of it, where a training costs a quarter. Learning
rates are those that `ppln reproduce STUDY --tune` chose for each.
"""

from collections.abc import Mapping
from typing import Any

from ppln.study.pose_text import ABOUT, METHOD, NOTE, SEARCH, WORDS
from ppln.study.rows import Claim, Column, Metric, Row, Search, Settings, Study, Table
from ppln.tasks.pose import Pose

_UNKNOWN = {"-1": "not known"}
_MOVEMENTS = {**_UNKNOWN, **{str(number): name for number, name in enumerate(Pose.movements())}}
_PAPERS = ("calabrese", "calabrese-mod", "ppln")
_RIVALS = ("calabrese-5", "plain-t")
_OURS = ("around", "once", "once-late", "frames")
_TWINS = {"around": "plain-t", **{key: f"{key}-plain-t" for key in _OURS[1:]}}
_SEARCHED = (*_PAPERS, *_RIVALS, *_OURS, *(_TWINS[key] for key in _OURS[1:]))
_BETWEEN = ("calabrese", "calabrese-5", "ppln", "around", "frames")  # with joints between pixels, too
_SEGMENTS = (6, 9, 12)  # beside the 3 of "ppln"
_METRICS = ("mpjpe_px_camera2", "mpjpe_px_camera3", "mpjpe_mm")
# Of the same persons: in "people", what few clips show is seldom there.
_SETS: Mapping[str, Settings] = {"people": {}, "people-even": {"even_movements": True, "test_samples": 270}}

# The paper's figures on DHP19: 2D in cameras 2 and 3, in pixels, and 3D in mm.
_PAPER = {
    "calabrese": ("7.49", "7.29", "82.17"),
    "calabrese-mod": ("11.90", "11.78", "130.24"),
    "ppln": ("6.76", "6.51", "73.05"),
    "ppln-no-normalization": ("6.81", "6.74", "74.88"),
    "ppln-no-smoothing": ("6.58", "6.45", "71.64"),
}
_TITLES = {
    "calabrese": "Calabrese: one frame",
    "calabrese-mod": "CalabreseMod: ten frames, ten outputs",
    "calabrese-5": "Calabrese, five frames around t",
    "plain-t": "plain twin of PPLN, told t",
    "ppln": "PPLN",
    "around": "PPLN from the frames around t",
    "once": "encoder once",
    "once-late": "encoder and half the decoder once",
    "frames": "encoder on each frame",
    "once-plain-t": "plain twin of encoder once, told t",
    "once-late-plain-t": "plain twin of encoder and half the decoder once, told t",
    "frames-plain-t": "plain twin of encoder on each frame, told t",
}
_NETWORKS = {  # where they are not called as rows are
    **{"around": "ppln-around", "once": "ppln-once", "once-late": "ppln-once", "frames": "ppln-frames"},
    **{
        "once-plain-t": "plain-once-t",
        "once-late-plain-t": "plain-once-t",
        "frames-plain-t": "plain-frames-t",
    },
}


def _row(key: str, title: str, network: str, rate: float, options: Settings, **task: Any) -> Row:
    paper = dict(zip(_METRICS, _PAPER.get(key, ()), strict=False))
    return Row(key, title, f"pose-{network}", options, task, {"learning_rate": rate}, paper)


def _rows(rate: Mapping[str, float]) -> tuple[Row, ...]:
    """Those that change one of the rows with a rate have its rate."""

    def main(key: str, end: str = "", more: str = "", **task: Any) -> Row:
        options = {"late": True} if key.startswith("once-late") else {}
        if key == "calabrese-mod":  # it gives all ten at once, whatever is asked for
            task["times_per_sample"] = 10
        return _row(key + end, _TITLES[key] + more, _NETWORKS.get(key, key), rate[key], options, **task)

    def ppln(key: str, title: str, **options: Any) -> Row:
        return _row(f"ppln-{key}", f"PPLN, {title}", "ppln", rate["ppln"], options)

    return (
        *(main(key) for key in _SEARCHED),
        ppln("no-normalization", "not normalised", normalize=False),
        ppln("no-smoothing", "not smoothed", temperature=None),
        ppln("released", "as in the released code", semantics="released"),
        *(ppln(f"segments-{n}", f"n = {n}", segments=n) for n in _SEGMENTS),
        *(main(key, "-between", ", joints between pixels", subpixel=True) for key in _BETWEEN),
    )


_MOTIONS = "data/cmu_bvh.zip"
_DHP19 = Row("dhp19", "the network of DHP19's makers", "pose-calabrese", file="data/DHP_CNN.model")


def _claims() -> tuple[Claim, ...]:
    def better(ours: str, theirs: str, metric: str = "mpjpe_mm") -> Claim:
        return Claim(ours, theirs, "people", metric)

    others = ("calabrese", "calabrese-mod", "calabrese-5")
    return (
        *(better("ppln", other, metric) for other in (*others, "plain-t") for metric in _METRICS[::-1]),
        better("calabrese", "calabrese-mod"),
        *(better(ours, other, metric) for ours in _OURS for other in others for metric in _METRICS[::-1]),
        *(better(ours, other) for ours in _OURS for other in ("ppln", _TWINS[ours])),
        *(better("ppln", f"ppln-{key}") for key in ("no-normalization", "no-smoothing", "released")),
        *(better(f"{key}-between", key) for key in _BETWEEN),
    )


def _study(
    name: str, title: str, task: Settings, steps: int, rate: Mapping[str, float], others: tuple[Row, ...] = ()
) -> Study:
    return Study(
        name=name,
        settings={
            "task": {
                **{"name": "pose", "data": "people", "motions": _MOTIONS, "times_per_sample": 4},
                **{"train_samples": 4096, "val_samples": 256, "test_samples": 256, **task},
            },
            "optimizer": {
                **{"optimizer": "rmsprop", "alpha": 0.9, "eps": 1e-7, "batch": 16, "steps": steps},
                **{"schedule": "cosine", "warmup_steps": steps // 15, "clip_norm": 10.0, "ema": 0.0},
            },
            "machine": {"precision": "bf16", "channels_last": True, "keep_samples": True},
        },
        budget="One budget: {train_samples:,} samples, each of two cameras of {height} x {width}, {steps:,} "
        "steps of {batch}, {times_per_sample} times of each (CalabreseMod: all ten).",
        sets=_SETS,
        metrics={
            "mpjpe_mm": Metric("3D MPJPE", 1, "lower"),
            "mpjpe_px_camera2": Metric("2D MPJPE, camera 2", 2, "lower"),
            "mpjpe_px_camera3": Metric("2D MPJPE, camera 3", 2, "lower"),
        },
        columns=tuple(Column(metric, name) for name in (*_SETS, None) for metric in _METRICS),
        rows=(*_rows(rate), *others),
        tables=(
            Table("The paper's networks", _PAPERS),
            *(Table("Trained by others on real recordings", (other.key, "calabrese")) for other in others),
            Table("What sees the frames around t", ("calabrese", "calabrese-5", "plain-t", "ppln", "around")),
            Table(
                "An encoder that runs once for all times",
                tuple(key for ours in _OURS[1:] for key in (_TWINS[ours], ours)),
            ),
            Table("Normalisation and smoothing", ("ppln-no-normalization", "ppln-no-smoothing", "ppln")),
            Table("As in the released code, and as in the paper", ("ppln-released", "ppln")),
            Table("Segments", ("ppln", *(f"ppln-segments-{n}" for n in _SEGMENTS))),
            Table(
                "Joints between pixels",
                tuple(key for of in _BETWEEN for key in (of, f"{of}-between")),
            ),
            *(
                Table(f"By {part}", (*_PAPERS, *_RIVALS, *_OURS), by=part, labels=labels)
                for part, labels in (("movement", _MOVEMENTS), ("subject", _UNKNOWN))
            ),
            Table("By movement and subject", (*_PAPERS, "around"), by="movement, subject", labels=_MOVEMENTS),
        ),
        claims=_claims(),
        later={"times_per_sample": 4, "subpixel": False},
        frames="times",
        units="2D MPJPE in pixels, 3D MPJPE in mm",
        paper=_METRICS,
        paper_data="DHP19",
        one_tailed=True,
        parts=("movement", "subject", "movement, subject"),
        needs={_MOTIONS: "it holds motions of CMU as BVH files; docs/data.md tells where they are from"},
        search=Search(rows=_SEARCHED, rates=(3e-4, 1e-3, 3e-3), steps=steps // 3, close=5.0, note=SEARCH),
        title=title,
        about=ABOUT,
        note=NOTE,
        words=WORDS.format(name=name),
        method=METHOD,
    )


_RATES = dict.fromkeys(_SEARCHED, 1e-3)

FULL = _study("pose", "The study of pose", {"height": 260, "width": 344}, 3000, _RATES, (_DHP19,))
HALF = _study(
    "pose-half",
    "The study of pose, at half size",
    {"height": 130, "width": 172, "sigma_px": 2.0},
    1500,
    _RATES,
)
