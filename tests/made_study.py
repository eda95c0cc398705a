"""A study, and a study.json of made-up results."""

import json
from dataclasses import replace

from ppln.study import STUDIES
from ppln.study.rows import Claim, Row, Table

PSNR = {"ours": (34.0, 34.5, 34.25), "theirs": (33.0, 33.25, 33.5), "blurry": (30.0,)}


def made(row, seed, psnr, *, sets=("scenes", "scenes-53", "slider"), rate=1e-3):
    """What is known of a row and a seed."""
    training = None
    settings = {"model": {"name": row, "options": {}}}
    if row != "blurry":
        settings |= {"task": {"times_per_sample": 4}, "optimizer": {"learning_rate": rate}}
        git = {"revision": "abcdef0123456789", "dirty": seed == 1}
        training = {
            "steps": 10,
            "samples": 480,
            "loss": 0.01 * (seed + 1),
            "seconds": 60.0 + seed,
            "samples_per_s": 1000.0 + seed,
            "on": "H200",
            "validation": {"psnr": psnr - 5},
            "about": {"git": git, "versions": {"torch": "2.13.0"}},
        }
    values = {
        "scenes": {"psnr": psnr, "ssim": 0.9 + seed / 100, "nrmse": 0.1},
        "scenes-53": {
            "psnr": psnr - 0.5,
            "psnr_seen": psnr - 0.25,
            "psnr_unseen": psnr if row == "blurry" else psnr - 1.5,
        },
        "slider": {"psnr": psnr - 8, "ssim": 0.8, "nrmse": 0.2},
    }
    return {
        "row": row,
        "seed": seed,
        "settings": settings,
        "parameters": 0 if row == "blurry" else 11_000_000,
        "training": training,
        "sets": {
            name: {
                "settings": {"data": name},
                "samples": 3,
                "data": {"x_rms": [4.5, 1.25, 1.0]},
                "metrics": values[name],
                "per_sample": {"psnr": [values[name]["psnr"] + d for d in (-1.0, 0.0, 1.0)]},
            }
            for name in sets
        },
    }


STUDY = replace(
    STUDIES["deblur"],
    rows=(
        Row("blurry", "EDI", "deblur-edi", paper={"nrmse": "0.336", "psnr": "17.822", "ssim": "0.515"}),
        Row("theirs", "their network", "deblur-unet-14"),
        Row("ours", "our network", "deblur-ppln"),
    ),
    tables=(Table("All systems", ("blurry", "theirs", "ours", "later")),),
    claims=(),
)


def claiming(*claims):
    """The study with these claims: ours, theirs, least."""
    return replace(STUDY, claims=tuple(Claim(a, b, "scenes", "psnr", least) for a, b, least in claims))


def study(*found, steps=10, **more):
    return {
        "format": "ppln study",
        "version": 1,
        "study": "deblur",
        "budget": {
            "task": {"train_samples": 12_288, "height": 128, "width": 128, "times_per_sample": 4},
            "optimizer": {"steps": steps, "batch": 48},
        },
        "results": list(found),
        **more,
    }


def everything():
    return [made(row, seed, psnr) for row, seeds in PSNR.items() for seed, psnr in enumerate(seeds)]


def put(path, content):
    path.write_text(json.dumps(content))
    return path
