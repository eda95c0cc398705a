"""The study of deblurring: every system of the paper's table, baselines, our networks and their ablations.

Rows have the same supervised frames, too, and parameters within 5 %.
"""

from dataclasses import replace
from typing import Any

from ppln.study.deblur_text import ABOUT, METHOD, NOTE, SEARCH, WORDS
from ppln.study.rows import Claim, Column, Metric, Row, Search, Settings, Study, Table

INPUT = "blurry"  # the row that gives back its input

# About 10.8 M parameters each. A PP layer of 3 segments predicts 10 numbers an output, 9 if not normalised.
_PLAIN: Settings = {"width": 48}
_PPLN: Settings = {"width": 15}
_PPLN_BARE: Settings = {"width": 16, "normalize": False}
_HEAD: Settings = {**_PLAIN, "channels": 24, "layers": 4, "segments": 6, "plain": "hidden", "around": False}

_SEGMENTS = (1, 2, 3, 10, 20)  # beside the 6 of "head"
_TIMES = (1, 2, 8, 14)  # beside the 4 of "head"
_SMALL = ((3, 3), (3, 6), (4, 3))  # layers and segments of heads as fast as ours

# The paper's NRMSE, which it calls MSE, PSNR and SSIM on HQF.
_PAPER = {
    "edi": "0.336 17.822 0.515",
    "eslnet": "0.452 14.938 0.282",
    "eslnet-pp": "0.385 16.870 0.363",
    "ecir": "0.207 21.713 0.609",
    "deblursr": "0.161 23.912 0.694",
    "unet-blind": "0.334 17.834 0.508",
    "ppln": "0.152 24.284 0.728",
    "ppln-no-normalization": "0.264 19.721 0.554",
    "ppln-no-smoothing": "0.157 23.994 0.718",
}


def _row(
    key: str, title: str, network: str, options: Settings, rate: float, edges: float = 0.0, **optimizer: Any
) -> Row:
    """With a learning rate and a weight of gradients in the loss, edges, that `ppln reproduce deblur --tune`
    chose, by tune.json, study.json and study-rates.json of benchmarks/results. Rows that change one of those
    it has tried have its.
    """
    optimizer = {"learning_rate": rate, **optimizer}
    return Row(key, title, f"deblur-{network}", options, {"edges": edges}, optimizer, _paper(key))


def _edi(key: str, title: str, **options: Any) -> Row:
    return Row(key, title, "deblur-edi", options, paper=_paper(key))


def _paper(key: str) -> dict[str, str]:
    return dict(zip(("nrmse", "psnr", "ssim"), _PAPER[key].split(), strict=True)) if key in _PAPER else {}


def _eslnet(key: str, title: str, network: str, rate: float, **options: Any) -> Row:
    """Unrolled networks diverge easily."""
    return _row(key, title, network, options, rate, clip_norm=1.0)


def _head(key: str, title: str, task: Settings | None = None, rate: float = 3e-3, **options: Any) -> Row:
    row = _row(key, title, "ppln-head", {**_HEAD, **options}, rate, edges=2.0)
    return replace(row, task={**row.task, **(task or {})})


def _ppln(key: str, title: str, edges: float = 2.0, **options: Any) -> Row:
    return _row(key, title, "ppln", options, 1e-2, edges)


def _residual(kind: str, title: str, balance: bool = False) -> Row:
    """A U-Net that starts from the blurry frame, as ours does, or has balanced events, too."""
    key = f"unet-{kind}-{'balanced' if balance else 'residual'}"
    return _row(key, title, f"unet-{kind}", {**_PLAIN, "residual": True, "balance": balance}, 1e-3)


def _claim(ours: str, theirs: str, set: str = "scenes", least: float = 0.0, metric: str = "psnr") -> Claim:
    return Claim(ours, theirs, set, metric, least)


_AROUND: Settings = {"edges": 0.0}  # heads that are told the events around t

_SYSTEMS = (
    *("edi", "edi-balanced", "edi-best", "edi-balanced-best", "eslnet", "eslnet-pp", "ecir", "deblursr"),
    *("unet-blind", "unet-t", "unet-14", "unet-t-residual", "unet-14-residual", "ppln", "ppln-observed"),
)
_OTHERS = (*_SYSTEMS, "eslnet-fine", "ecir-balanced", "unet-t-balanced", "unet-14-balanced", "head-plain")
_RIVALS = ("edi", "eslnet", "eslnet-fine", "eslnet-pp", "ecir", "ecir-balanced", "deblursr", "ppln")
# The kind that is shipped; and the PP head, the best by validation of those with one budget that lose less
# than 0.3 dB at unseen times.
_BEST = ("head-around", "head-pp")
_KINDS = ("", "-residual", "-balanced")
# Against the plain head with the events around t: those two, and other heads that validation scenes prefer.
_TRIED = ("head-around", "head-around-10", "head-pp", "head-pp-10", "head-pp-around", "head-segments-20")

STUDY = Study(
    name="deblur",
    settings={
        "task": {
            **{"name": "deblur", "data": "scenes", "height": 128, "width": 128},
            **{"train_samples": 12_288, "test_samples": 256, "times_per_sample": 4},
        },
        "optimizer": {
            **{"optimizer": "adam", "batch": 48, "steps": 1000},
            **{"schedule": "cosine", "warmup_steps": 100, "ema": 0.995},
        },
        "machine": {"precision": "bf16", "channels_last": True, "keep_samples": True},
    },
    budget="One budget: {train_samples:,} samples of {height} x {width}, {steps:,} steps of {batch}, "
    "{times_per_sample} frames of each.",
    sets={"scenes": {}, "scenes-53": {"test_times": 53, "test_samples": 64}},
    metrics={
        "psnr": Metric("PSNR", 2, "higher"),
        "ssim": Metric("SSIM", 3, "higher"),
        "nrmse": Metric("NRMSE", 3, "lower"),
        "psnr_unseen": Metric("PSNR at unseen times", 2, "higher"),
    },
    units="PSNR in dB",
    columns=(
        *(Column(metric, "scenes") for metric in ("psnr", "ssim", "nrmse")),
        Column("psnr"),
        Column(
            "psnr",
            "scenes",
            "PSNR, {set} that move",
            below=(INPUT, 80.0),
            note="{set}: nothing moves in {count} of the samples, where PSNR can be as high as 90 dB and "
            "says little; the mean is also given without them.",
        ),
        Column(
            "psnr_seen",
            "scenes-53",
            "dB lost at unseen times, {set}",
            less="psnr_unseen",
            over=INPUT,
            note="{set}: seen times include both ends of the exposure, the hardest; at the others, the "
            "blurry frame is {value:.2f} dB nearer to the truth. dB lost are counted from there.",
        ),
    ),
    scales_warmup=False,
    later={"times_per_sample": 1, "edges": 0.0},
    frames="sharp frames",
    paper=("nrmse", "psnr", "ssim"),
    paper_data="HQF",
    title="The study of deblurring",
    about=ABOUT,
    note=NOTE,
    words=WORDS,
    method=METHOD,
    search=Search(
        rows=(
            *("unet-blind", "unet-t", "unet-14", "unet-t-residual", "unet-14-residual"),
            *("ecir", "deblursr", "eslnet", "eslnet-pp"),
            *("ppln", "ppln-released", "head-plain", "head-plain-around", "head", "head-around"),
        ),
        tasks=({"edges": 0.0}, {"edges": 2.0}),
        close=0.3,  # dB
        note=SEARCH,
    ),
    rows=(
        # EDI for events that change nothing gives back the blurry frame.
        _edi(INPUT, "blurry input", contrast=1e-9),
        _edi("edi", "EDI"),
        _edi("edi-balanced", "EDI, balanced", balance=True),
        _edi("edi-best", "EDI, contrast best for slider", contrast=0.35),
        _edi("edi-balanced-best", "EDI, balanced, contrast best for slider", balance=True, contrast=0.45),
        _eslnet("eslnet", "eSL-Net", "eslnet", 3e-3, width=480, stride=8),
        _eslnet("eslnet-fine", "eSL-Net, small, codes as fine as the frame", "eslnet", 1e-3),
        _eslnet("eslnet-pp", "eSL-Net++", "eslnet-pp", 1e-3, width=400, stride=8),
        _row("ecir", "E-CIR", "ecir", _PLAIN, 3e-3),
        _row("ecir-balanced", "E-CIR, balanced", "ecir", {**_PLAIN, "balance": True}, 3e-3),
        _row("deblursr", "DeblurSR", "deblursr", {**_PLAIN, "features": 128}, 3e-3, edges=2.0),
        _row(
            "unet-blind", "U-Net, blind to t (the paper's baseline)", "unet-blind", _PLAIN, 2.7e-1, edges=2.0
        ),
        _row("unet-t", "U-Net, told t", "unet-t", _PLAIN, 3e-2),
        _row("unet-14", "U-Net, 14 outputs", "unet-14", _PLAIN, 3e-2),
        _residual("t", "U-Net, told t, residual"),
        _residual("t", "U-Net, told t, residual, balanced", balance=True),
        _residual("14", "U-Net, 14 outputs, residual"),
        _residual("14", "U-Net, 14 outputs, residual, balanced", balance=True),
        _ppln("ppln", "PPLN, as in the paper", **_PPLN, mean="regressed"),
        _ppln("ppln-observed", "PPLN, mean observed", **_PPLN, mean="observed"),
        _ppln("ppln-no-normalization", "PPLN, not normalised", **_PPLN_BARE),
        _ppln("ppln-no-smoothing", "PPLN, not smoothed", **_PPLN, mean="regressed", temperature=None),
        _ppln("ppln-released", "PPLN, as in the released code", edges=0.0, **_PPLN, semantics="released"),
        _head("head-around", "mixed head, events around t", _AROUND, around=True),
        _head("head-around-10", "mixed head, events around t, n = 10", _AROUND, around=True, segments=10),
        _head(
            "head-unbalanced",
            "mixed head, events around t, not balanced",
            _AROUND,
            around=True,
            balance=False,
        ),
        _head("head", "mixed head"),
        _head("head-plain", "plain head", plain="all"),
        _head(
            "head-plain-around",
            "plain head, events around t",
            rate=1e-3,
            plain="all",
            around=True,
        ),
        _head("head-pp", "PP head", plain="none"),
        _head("head-pp-10", "PP head, n = 10", plain="none", segments=10),
        _head("head-pp-around", "PP head, events around t", _AROUND, around=True, plain="none"),
        *(
            _head(
                f"head-pp-{layers}-{n}",
                f"PP head, {layers} layers of 16 channels, n = {n}",
                plain="none",
                channels=16,
                layers=layers,
                segments=n,
            )
            for layers, n in _SMALL
        ),
        _head("head-exact-times", "mixed head, exact times in training", jitter=0.0),
        _head("head-regressed", "mixed head, mean regressed", mean="regressed"),
        _head("head-no-normalization", "mixed head, not normalised", mean="none"),
        _head("head-no-smoothing", "mixed head, not smoothed", temperature=None),
        *(_head(f"head-segments-{n}", f"mixed head, n = {n}", segments=n) for n in _SEGMENTS),
        *(_head(f"head-times-{n}", f"mixed head, times: {n}", {"times_per_sample": n}) for n in _TIMES),
        _head("head-of-27", "mixed head, frames at 27 times", {"train_times": 27}),
    ),
    tables=(
        Table("All systems", (INPUT, *_SYSTEMS, "head", "head-pp", "head-around")),
        Table(
            "Balanced, or not",
            (
                *("edi", "edi-balanced", "ecir", "ecir-balanced", "unet-t-residual", "unet-t-balanced"),
                *("unet-14-residual", "unet-14-balanced", "head-unbalanced", "head-around"),
            ),
        ),
        Table("eSL-Net's size", ("eslnet", "eslnet-fine")),
        Table(
            "The head: PP, mixed or plain, with or without the events around t",
            (
                *("head-plain", "head", "head-plain-around", "head-around", "head-around-10", "head-pp"),
                *("head-pp-10", "head-pp-around"),
                *(f"head-pp-{layers}-{n}" for layers, n in _SMALL),
            ),
        ),
        Table(
            "Normalisation",
            (
                *("ppln-no-normalization", "ppln", "ppln-observed"),
                *("head-no-normalization", "head-regressed", "head"),
            ),
        ),
        Table("Smoothing", ("ppln-no-smoothing", "ppln", "head-no-smoothing", "head")),
        Table("As in the released code, and as in the paper", ("ppln-released", "ppln")),
        Table("Segments", tuple(f"head-segments-{n}" if n != 6 else "head" for n in sorted({6, *_SEGMENTS}))),
        Table(
            "Time stamps per sample in training",
            tuple(f"head-times-{n}" if n != 4 else "head" for n in sorted({4, *_TIMES})),
        ),
        Table("Times in between, unseen but in the last row", ("head-exact-times", "head", "head-of-27")),
    ),
    claims=(
        *(_claim(ours, f"unet-14{kind}", least=1.5) for ours in _BEST for kind in _KINDS),
        *(_claim(ours, f"unet-t{kind}", least=3) for ours in _BEST for kind in _KINDS),
        *(_claim(ours, "head-plain", least=1) for ours in (*_BEST, "head")),
        *(_claim(ours, "head-plain-around", least=1) for ours in _TRIED),
        *(_claim(ours, other) for ours in _BEST for other in _RIVALS),
        *(_claim(ours, other, "slider", least=0.5) for ours in _BEST for other in _OTHERS),
        *(_claim(ours, "head-plain-around", "slider", least=0.5) for ours in _TRIED),
        _claim("head-around", "unet-14", "scenes-53", metric="psnr_unseen"),
        _claim("head-around", "head-unbalanced"),
        *(
            _claim("head-unbalanced", other, set)
            for other in ("unet-14-residual", "ecir")
            for set in ("scenes", "slider")
        ),
        _claim("ppln", "unet-blind"),
        _claim("ppln", "ppln-no-normalization"),
        _claim("ppln", "ppln-no-smoothing"),
        _claim("ppln", "ppln-released"),
        _claim("ppln-observed", "ppln"),
    ),
)
