"""A test set of a study: all rows are judged by the same samples, which are made or read once."""

from functools import cached_property

from ppln.engine import config
from ppln.engine.compare import other_samples
from ppln.engine.evaluate import told_apart
from ppln.engine.feed import Held
from ppln.study.portions import Plain
from ppln.tasks import Task

SPOTS = 8  # windows by which a folder of them is known again


class StudySet(Held):
    """A task's test samples.

    is_read: from a folder, of which the settings do not tell what is in it.
    """

    def __init__(self, task: Task, *, is_read: bool) -> None:
        super().__init__(task, "test")
        self.is_read = is_read
        self.settings: Plain = {
            name: value for name, value in config.plain(task).items() if name not in ("name", "folder")
        }
        if is_read:
            len(self)  # an error now, rather than after a training

    def is_of(self, result: Plain) -> bool:
        """Whether a result with the same settings is of these samples.

        Of a folder, their number tells, and some of them, evenly spread.
        """
        if not self.is_read:
            return True
        if result["samples"] != len(self):
            return False
        spots, now = self._spots
        was = {column: [values[i] for i in spots] for column, values in result["data"].items()}
        return other_samples(was, now) is None

    @cached_property
    def _spots(self) -> tuple[list[int], dict[str, list[float]]]:
        spots = sorted({k * len(self) // SPOTS for k in range(SPOTS)})
        found = told_apart(self.task.batch(self.source.batch(spots, "cpu"), None, 0))
        return spots, {column: values.tolist() for column, values in found.items()}
