"""The words of the studies of steering, for their pages. Figures are in their tables."""

_ALL = """\
Every row of the paper's steering tables, its ablations, and plain networks as large learn to predict the
angle of the steering wheel at ten times in half a second, from ten frames and the events before each."""

ABOUT = f"""\
{_ALL} All are trained and tested on synthetic drives, by day and at night (`driving`); test drives are on
other roads."""

ABOUT_DONKEY = f"""\
{_ALL} All are trained and tested on real video, of a small car that a person steers along a track; its
events are simulated between the frames (`donkey`). Each uninterrupted drive is split by time: the first 60 %
are for training, the next 10 % for validation, the last 30 % for testing."""

_LEFT = "Rows without figures are not trained yet."

NOTE = _LEFT

NOTE_DONKEY = f"""\
With a trunk for every row, with which all heads do better, a plain head with ten outputs does best: our
networks do not beat it. The order of the paper holds where outputs are in units of 15 degrees; in degrees, as
in the paper, the search below has HuMod ahead of PPLN, and these rows are not trained in full yet. p-values
and intervals are over seeds of training: all windows are of one recording. {_LEFT}"""

_WORDS = """\
* **Hu** sees the present row only; a row is a frame with the events of 50 ms. **HuMod** and **PPLN** see ten.
  A step trains Hu with two of the ten angles of a sample, drawn anew each time: each costs a pass of its own.
* A **plain twin** has PPLN's trunk, and a plain head as deep and with as many weights: with **ten outputs**,
  one for each row, between which it is interpolated, or **told t** as one more feature.
* **On rows**: the trunk reads one row at a time, and the features of all ten go to the head. Its first layer
  has a stride of 2, so that ten runs cost about twice as much as one on all rows.
* **Votes of rows**: the same trunk. Each row, with two neighbours on either side, predicts piecewise linear
  functions of the time from it; their sum over rows goes to two PP layers, or two plain ones in the twin.
* An output of 1 is 15 degrees, about the deviation of angles, or one degree where the row says **outputs in
  degrees**, as in the paper.
* **Every second row**: trained with the angles at rows 0, 2, 4, 6 and 8 of ten, and tested at all. The error
  *between rows* is that at rows 1, 3, 5 and 7, which lie between those. Of ten outputs there are then
  **five**, one for each row that is trained.
* **n** is the number of segments, 3 where it is not named."""

WORDS = f"""\
    ppln reproduce steering                                                     # train and test all
    ppln reproduce steering --minutes 0 --out here --page docs/study-steering.md \\
        --add benchmarks/results/steering/study.json                            # only this page

[Error against compute](figures/compute-steering.png) is drawn by `benchmarks/compute.py`.

{_WORDS}"""

PREPARE_DONKEY = "ppln prepare donkey --raw donkey_track.h5 --out data/donkey --shrink 2"

WORDS_DONKEY = f"""\
    {PREPARE_DONKEY}
    ppln reproduce steering-donkey                                              # train and test all
    ppln reproduce steering-donkey --minutes 0 --out here --page docs/study-steering-donkey.md \\
        --add benchmarks/results/steering-donkey/study.json                     # only this page

{_WORDS}"""

SEARCH = "Rows that change one of these have its rate."

METHOD = """\
* All rows see the same samples in the same order of a seed, with one batch size, for as many steps; Adam with
  weight decay, the paper's, and a cosine; the weights of the last step are tested.
* p is that of the paper: one-tailed, of Welch's t test over seeds. Intervals are of differences of equal
  seeds.
* Nothing of a test set is looked at before the last evaluation: rates are chosen by validation."""
