"""Named settings: the paper's, and small ones that end on a CPU in minutes.

    recipe("deblur", "paper")          # a Train
    ppln train deblur --recipe paper

A recipe says only what differs from the defaults. What the paper leaves open (sizes of batches, the details
of RMSProp) is as in the authors' code. All but "finetune" train on synthetic data.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ppln.engine.config import Machine, Model, Optimizer, Run, Train
from ppln.names import suggestion
from ppln.tasks import Deblur, Pose, Steering, Task


class Recipe(NamedTuple):
    line: str  # what it is, for a list
    settings: Train
    of_windows: bool = False  # it is for prepared data alone


# The rate is that of the paper's text, 1e-3; the authors' code has 1e-4: "released-rate".
_DEBLUR = Optimizer(learning_rate=1e-3, batch=32, epochs=50, schedule="steps", milestones=(20, 40), decay=0.5)
_STEERING = Optimizer(learning_rate=1e-3, weight_decay=1e-4, batch=128, epochs=200)
_POSE = Optimizer(
    optimizer="rmsprop",
    learning_rate=1e-3,
    alpha=0.9,
    eps=1e-7,
    batch=32,  # people, each seen by two cameras: 64 pictures
    epochs=20,
    schedule="steps",
    milestones=(10, 15),
    decay=0.1,
)
# Of the study of pose (study/pose.py), whose rows are trained like this.
_POSE_STUDY = Optimizer(
    optimizer="rmsprop",
    learning_rate=1e-3,
    alpha=0.9,
    eps=1e-7,
    batch=16,
    steps=3000,
    schedule="cosine",
    warmup_steps=200,
    clip_norm=10.0,
)
# Pictures as large as the data set's, and all of its time stamps.
_HQF = Deblur(height=180, width=240, times_per_sample=14)
_DHP19 = Pose(times_per_sample=10)


def _paper(line: str, network: str, optimizer: Optimizer, task: Task, **options: Any) -> Recipe:
    return Recipe(line, Train(task, Model(network, options), optimizer))


def _small(network: str, task: Task, steps: int, batch: int, rate: float, **options: Any) -> Recipe:
    return Recipe(
        f"{network} on small pictures, {steps} steps: minutes on a CPU",
        Train(
            task,
            Model(network, options),
            Optimizer(learning_rate=rate, batch=batch, steps=steps, schedule="cosine"),
            Machine(keep_samples=True),  # making them takes longer than a step
            Run(validate_every=steps // 3, checkpoint_every=steps // 6),
        ),
    )


def _ablations(network: str, optimizer: Optimizer, task: Task) -> dict[str, Recipe]:
    """The paper's tables on integral normalisation and on smoothing, which are of all three tasks."""
    return {
        "paper-no-normalization": _paper(
            "paper, without integral normalisation", network, optimizer, task, normalize=False
        ),
        "paper-no-smoothing": _paper("paper, without smoothing", network, optimizer, task, temperature=None),
    }


def _shipped(network: str, task: Task, optimizer: Optimizer, every: int, compile: bool = True) -> Recipe:
    return Recipe(
        f"as {network} was trained; minutes on a large GPU",
        Train(
            task,
            Model(network),
            replace(optimizer, schedule="cosine", warmup_steps=200, ema=0.999),
            Machine(precision="bf16", compile=compile, channels_last=True, keep_samples=True),
            Run(log_every=50, validate_every=every, checkpoint_every=every),
        ),
    )


RECIPES: dict[str, dict[str, Recipe]] = {
    "deblur": {
        "shipped": _shipped(
            "deblur-ppln-head-small",
            Deblur(train_times=27, edges=2.0, train_samples=24_576),
            Optimizer(learning_rate=1e-3, batch=48, steps=8000),
            every=2000,
            compile=False,
        ),
        "finetune": Recipe(
            "go on from trained weights, on your recordings: give --data windows --folder PATH, of `ppln "
            "prepare recordings --use time`",
            Train(
                Deblur(edges=2.0),
                Model("deblur-ppln-head-small", weights=Path("deblur-ppln-head-small")),
                Optimizer(learning_rate=1e-4, batch=4, steps=500, schedule="cosine"),
                run=Run(validate_every=100, checkpoint_every=100),
            ),
            of_windows=True,
        ),
        "small": _small(
            "deblur-ppln-head-small",
            Deblur(
                textures="scikit-image",  # no time to make others
                height=64,
                width=64,
                train_samples=256,
                val_samples=16,
                motion_px=30.0,
                substeps=4,
                edges=4.0,
            ),
            steps=2100,
            batch=4,
            rate=3e-3,
            width=16,
            channels=16,
            layers=3,
            segments=2,
        ),
        "paper": _paper(
            "PPLN, the paper's U-Net of PP layers, 192 M parameters", "deblur-ppln", _DEBLUR, _HQF
        ),
        "paper-unet": _paper("the paper's baseline, a U-Net blind to t", "deblur-unet-blind", _DEBLUR, _HQF),
        **_ablations("deblur-ppln", _DEBLUR, _HQF),
        "released-rate": _paper(
            "paper, at the learning rate of the authors' released code",
            "deblur-ppln",
            replace(_DEBLUR, learning_rate=1e-4),
            _HQF,
        ),
    },
    "steering": {
        "small": _small(
            "steering-ppln",
            Steering(height=32, width=43, train_samples=480, val_samples=48),
            steps=300,
            batch=16,
            rate=1e-3,
        ),
        "shipped": _shipped("steering-ppln", Steering(), replace(_STEERING, epochs=30), every=750),
        "paper": _paper(
            "the paper's network, PP layers after a ResNet", "steering-ppln", _STEERING, Steering()
        ),
        "paper-hu": _paper("the paper's baseline, one frame at a time", "steering-hu", _STEERING, Steering()),
        "paper-humod": _paper("the paper's baseline on ten frames", "steering-humod", _STEERING, Steering()),
        **_ablations("steering-ppln", _STEERING, Steering()),
        **{
            f"paper-segments-{n}": _paper(
                f"paper, with {n} segments instead of 3", "steering-ppln", _STEERING, Steering(), segments=n
            )
            for n in (6, 9, 12)
        },
    },
    "pose": {
        "small": _small(
            "pose-ppln",
            Pose(height=64, width=88, train_samples=128, val_samples=8, times_per_sample=2, sigma_px=2.0),
            steps=200,
            batch=4,
            rate=1e-3,
        ),
        "shipped": Recipe(
            "for weights of pose-ppln: people with CMU's motions, data/cmu_bvh.zip; for a large GPU",
            Train(
                Pose(motions=Path("data/cmu_bvh.zip"), val_samples=256),
                Model("pose-ppln"),
                _POSE_STUDY,
                Machine(precision="bf16", channels_last=True, keep_samples=True),
                Run(log_every=50, validate_every=1000, checkpoint_every=500),
            ),
        ),
        "paper": _paper("the paper's network with PP layers", "pose-ppln", _POSE, _DHP19),
        "paper-calabrese": _paper(
            "the paper's baseline, one frame at a time", "pose-calabrese", _POSE, _DHP19
        ),
        "paper-calabrese-mod": _paper(
            "the paper's baseline on ten frames", "pose-calabrese-mod", _POSE, _DHP19
        ),
        **_ablations("pose-ppln", _POSE, _DHP19),
    },
}


def recipe(task: str, name: str) -> Train:
    """The settings of this name, with a folder for the run, and options of the network to change at will."""
    recipes = RECIPES[_known("task", task, RECIPES)]
    found = recipes[_known("recipe", name, recipes)].settings
    run = replace(found.run, out=Path(f"runs/{task}-{name}"))
    return replace(found, model=replace(found.model), run=run)


def describe(task: str) -> list[tuple[str, str]]:
    """Names and what they stand for, a line each."""
    return [(name, recipe.line) for name, recipe in RECIPES[_known("task", task, RECIPES)].items()]


def _known(what: str, name: str, names: dict[str, Any]) -> str:
    if name in names:
        return name
    raise ValueError(f"there is no {what} {name!r}; {suggestion(name, names)}")
