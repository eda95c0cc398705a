"""The words of the study of deblurring, for its page. Figures are in its tables."""

ABOUT = """\
Every system of the paper's table, baselines, networks of our kind and their ablations restore sharp
frames from a blurry one and its events. All are trained on the same synthetic scenes, for as many steps,
with as many parameters. All are tested on synthetic scenes (`scenes`, and `scenes-53` with frames at more
times than were trained with) and on six windows of the real recording `slider_depth` (`slider`)."""

WORDS = """\
    ppln reproduce deblur --textures made+video --windows slider=data/slider              # train and test all
    ppln reproduce deblur --textures made+video --minutes 0 --out six --page docs/study-deblur.md \\
        --add benchmarks/results/study.json benchmarks/results/study-seeds.json           # only this page

`python benchmarks/clips.py CLIPS video` makes the textures of `video`, from nine public clips; `ppln
prepare recordings --raw slider_depth.zip --out data/slider` makes the windows. What it comes to is in
[results](results.md), with other measurements. Words of the tables, beside those of the
[glossary](architecture.md#glossary):

* A **U-Net** is plain and runs once for each t (told t), or once for all (blind to t, or with 14 outputs).
* A **head** is a small network that runs at every t, after a U-Net that runs once. In a **PP head** all
  layers are PP, in a **mixed head** the first and the last, in a **plain head** none. Ours are the first two.
* **Events around t**: the head is also given the events shortly before and after t; without it, it is told t
  only.
* **n** is the number of segments of the PP layers of a head, 6 where it is not named; **times** is how many
  frames of a sample a step trains with, 4 where it is not named.
* **Balanced**: events of both polarities weigh as if the camera had one threshold. Heads are where nothing
  else is said, all others only where it is said.
* **Residual**: what the network gives is added to the blurry frame. Heads and the rows "mean observed" have
  the blurry frame as their mean."""

NOTE = """\
The trainings of this study were made with scenes as they were before their cameras began in motion
(before commit 3c211b6), so its figures compare systems with each other, and not with the network that
comes with the package today."""

SEARCH = """\
Both losses are tried with the rate that is best for the first: the absolute difference, and that with
gradients weighed by `edges`. Where two rates were trained in full (`study-rates.json` has the one not
taken), eSL-Net and PPLN as in the released code have the one that validates better; residual U-Nets have
0.001, as 0.003 gains them nothing. Rows that are not here have the choice of the row that they change,
also the balanced U-Nets, which validate by 0.05 dB or less better with 0.003; the small eSL-Net has a
third of the large one's rate."""

METHOD = """\
*Textures.* Half of those of test scenes are made, half are from one clip that is used for nothing else;
so it is with validation scenes, and another clip. The six windows of `slider` follow each other in one
recording: intervals over samples take them for independent.

*Starting points.* The plain U-Nets predict the sharp frame itself, and first have to learn to give back
their input. Heads, PPLN with the mean observed, E-CIR, DeblurSR and the eSL-Nets start from the blurry
frame or near it. Where nothing moves, no network gives back the blurry frame exactly; so there is a
column for the scenes that move.

*Batch norm.* U-Nets, E-CIR, DeblurSR and PPLN share one batch norm among four layers, as in the authors'
code, but each layer has statistics of its own. Only the row "as in the released code" mixes them. The
trunk of the heads has none.

*Averages.* Weights are averaged over steps with a decay of (1 + n) / (10 + n) after n of them, at most
0.995.

*Seeds.* Trainings on a GPU need not repeat to the last bit: another order of rounding does as much as
another seed. `benchmarks/results/again.json` has what training again changed (`python benchmarks/seeds.py
again`), and `study-more.json` earlier trainings of the same rows.

*Machines.* Several networks were trained at once on one GPU (`--processes`), so seconds are of a shared
one; what has nothing to train was evaluated on a CPU."""
