"""What a study is: rows, test sets, columns, tables and claims. Data only, of which each task has a file.

Rows of a study have one budget: the same samples, steps and batches. What a row changes about that is what it
is about, or what suits it, such as its learning rate.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from ppln.models.networks import NETWORKS

Settings = Mapping[str, Any]


class Metric(NamedTuple):
    """One of the task's metrics."""

    title: str
    digits: int
    better: Literal["higher", "lower"]


@dataclass(frozen=True)
class Row:
    key: str
    """Names the row, and its folder."""
    title: str
    model: str
    options: Settings = field(default_factory=dict)
    task: Settings = field(default_factory=dict)
    """What it changes about the study's task."""
    optimizer: Settings = field(default_factory=dict)
    """What it changes about the study's training, such as its own learning rate."""
    paper: Mapping[str, str] = field(default_factory=dict)
    """The paper's figures as they are printed there, by metric."""
    file: str = ""
    """Where there are weights that others trained, of the network of DHP19's makers. Without them, the row is
    left out."""

    @property
    def trained(self) -> bool:
        """Else there is nothing to train, and no seed."""
        return NETWORKS[self.model].learns and not self.file


@dataclass(frozen=True)
class Column:
    """A column of the tables: a metric on a test set, the mean over seeds."""

    metric: str
    set: str | None = None
    """None: on each of those that the study does not name."""
    title: str = "{metric}, {set}"
    less: str | None = None
    """Take this metric from it."""
    over: str | None = None
    """With `less`: count from what this row has."""
    below: tuple[str, float] | None = None
    """Only samples of which this row has less than so much. If all are, there is no such column."""
    note: str = ""
    """Of {set}: what `over` counts from is {value}, or `below` leaves {count} samples out."""


@dataclass(frozen=True)
class Table:
    title: str
    rows: tuple[str, ...]
    """Keys, in order."""
    by: str | None = None
    """One of the study's parts: for each test set, a line for each part, a column for each row, of the first
    metric. Of parts by two columns, such as "movement, subject": a column for each value of the second."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What parts of the study's own test sets are called, by the values that tell them; else by these."""


@dataclass(frozen=True)
class Claim:
    """On the test set, the metric of `ours` is better than that of `theirs`, by `least` or more."""

    ours: str
    theirs: str
    set: str
    metric: str
    least: float = 0.0


@dataclass(frozen=True)
class Search:
    """What `ppln reproduce --tune` tries, with one seed, judged by the study's first metric in validation."""

    rows: tuple[str, ...]
    """Keys. Rows that change one of these have its choice."""
    rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
    """Learning rates; with thirds and threefolds of these while the lowest or the highest is best."""
    tasks: tuple[Settings, ...] = ({},)
    """What is tried of the task, such as losses: all rates with the first, then the others with the best."""
    steps: int = 500
    close: float = 0.0
    """Of the rates that are as close to the best, the lowest is taken: longer trainings may want lower
    ones."""
    note: str = ""
    """What else there is to say of what was taken."""


@dataclass(frozen=True)
class Study:
    name: str
    """By which `ppln reproduce` knows it."""
    settings: Settings
    """Sections task, optimizer and machine, as stored.build takes them: the budget of all rows."""
    budget: str
    """A sentence about it, with names of settings in braces."""
    sets: Mapping[str, Settings]
    """Test sets by name: what each changes about the task. All rows are evaluated on each."""
    metrics: Mapping[str, Metric]
    """Those that are shown; the first decides."""
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    tables: tuple[Table, ...]
    claims: tuple[Claim, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2)
    scales_warmup: bool = True
    """Trainings of other lengths, as of a search, warm up for as large a part of their steps. Not where
    searches are kept whose trainings warmed up for as many steps as the study's."""
    windows: Settings = field(default_factory=lambda: {"data": "windows"})
    """Of the task, for test sets that are read from folders."""
    prepared: Settings = field(default_factory=dict)
    """What the manifest of the task's folder must tell: how its windows were made."""
    prepare: str = ""
    """The command that makes them so."""
    later: Settings = field(default_factory=dict)
    """Settings of the task that do not change its samples, such as which inputs are given, with any values:
    rows that differ in these share them. What a row says of these counts in evaluation, too."""
    units: str = ""
    frames: str = ""
    """What a training compares with the truth, of which the task says how many there are in a sample."""
    paper: tuple[str, ...] = ()
    """Metrics of which the paper has figures, in its order."""
    paper_data: str = ""
    one_tailed: bool = False
    """Tell one-tailed p-values of claims, too, as the paper does of steering."""
    parts: tuple[str, ...] = ()
    """Columns of the task's judge, such as night, by which test sets are also judged part by part; or two,
    with a comma between."""
    search: Search | None = None
    needs: Settings = field(default_factory=dict)
    """What its task reads, by where it is: how to get it."""
    title: str = ""
    """Of its page."""
    about: str = ""
    """What is compared, in a few sentences."""
    note: str = ""
    """What a reader has to know before any figure."""
    words: str = ""
    """What a reader of the tables needs: commands, and what titles of rows mean. Markdown, as is `method`."""
    method: str = ""
    """How it is done, beyond what the settings say; without figures of results."""

    @property
    def task(self) -> str:
        return self.settings["task"]["name"]

    @property
    def metric(self) -> str:
        """The first."""
        return next(iter(self.metrics))

    def row(self, key: str) -> Row:
        return next(row for row in self.rows if row.key == key)

    def row_title(self, key: str) -> str:
        """Of a row, which may be one that the study has no more."""
        return next((row.title for row in self.rows if row.key == key), key)

    def ordered(self, results: Iterable[Mapping[str, Any]]) -> list[Any]:
        """Results of rows and seeds in the order of rows; last those of rows that the study has no more."""
        order = {row.key: k for k, row in enumerate(self.rows)}
        return sorted(results, key=lambda of: (order.get(of["row"], len(order)), of["row"], of["seed"]))
