"""The words of the studies of pose, for their pages. Figures are in their tables."""

ABOUT = """\
Every row of the paper's pose tables, its ablations, plain rivals and twins as large, and networks of ours
whose encoder runs once for all times learn where 13 joints of a person are in the pictures of two cameras, at
ten times, from ten event frames of each. All are trained and tested on synthetic people (`people`) with
recorded motion (CMU's) before the cameras of DHP19; test persons are others. `people-even` has the same test
persons, with as many samples of each movement of each."""

NOTE = """\
The paper's figures are of DHP19, whose people are real: compare rows of this page with each other."""

WORDS = """\
    ppln reproduce {name} --tune                                                # search for learning rates
    ppln reproduce {name}                                                       # train and test all
    ppln reproduce {name} --minutes 0 --out here --page docs/study-{name}.md \\
        --add benchmarks/results/{name}/study.json                              # only a page

The motions are CMU's, as BVH, in `data/cmu_bvh.zip`.

* **Calabrese** sees one frame, the one at t; with **five frames around t**, two more to either side.
  **CalabreseMod** and **PPLN** see ten.
* **From the frames around t**: the first PP layers begin as the frame at t, those before and after it, and
  the mean of all (docs/maths.md).
* **Encoder once**: all before the PP layers reads the ten frames together, and runs once for all times; in
  **encoder on each frame**, it reads one at a time.
* A **plain twin** has plain layers that are told t, with as many weights, in place of the PP layers.
* **Joints between pixels**: heat maps are centred where joints are, and joints are found between pixels
  (docs/metrics.md).
* **The network of DHP19's makers** is Calabrese as they trained it, on real recordings
  (`data/DHP_CNN.model`, from their repository). Nothing here was trained on what it says, but `people` were
  made with it: where a marker is on its part of the body was chosen by where it sees the marker on people to
  train with ([People beside real recordings](realism-people.md)).
* **By movement and subject**: nobody is in two splits, and the tables have what test persons do. What only
  others do has no row: kicking, punching, sitting, climbing, acting and more. Dance and balance are one clip
  each, of one person, which seldom lies in the pictures of all four cameras: `people` has next to none of
  them. The tables of the paper's appendix are of 33 movements of DHP19, by other persons, and stand beside
  none of these rows. Windows of DHP19 (`--windows dhp19=data/dhp19`, which `ppln prepare dhp19` makes) get
  tables as those, with its numbers of movements and subjects.
* **n** is the number of segments, 3 where it is not named."""

SEARCH = """\
Figures are in mm. In first trials, trainings that differed in the seed alone deviated by about 10 mm: of a
rate within 5 mm of the best, one seed does not tell that it is worse. Trainings warm up for as large a part
of their steps as those of the study. Validation samples are of two persons, who are in no test set. Rows that
change one of these have its rate."""

METHOD = """\
* All rows see the same samples in the same order of a seed, with one batch size, for as many steps; RMSProp
  with alpha 0.9 and eps 1e-7, DHP19's, a cosine, and gradients of length 10 at most; the weights of the last
  step are tested.
* A step compares four of a sample's ten times with the truth, the same for all rows and drawn anew each time.
  CalabreseMod computes all ten whatever is asked for, and is compared at all ten.
* 2D MPJPE is over all joints in a camera's picture, 3D MPJPE over those in both. In space, a joint is updated
  where the confidence of both cameras exceeds 0.3, else held.
* p is one-tailed, of Welch's t test over seeds. Intervals are of differences of equal seeds.
* Nothing of a test set is looked at before the last evaluation: rates are chosen by validation."""
