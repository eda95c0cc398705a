"""What is to be learnt: data, losses and metrics for deblurring, steering and pose."""

from ppln.datasets.source import Source
from ppln.tasks.deblur import Deblur
from ppln.tasks.pose import Pose
from ppln.tasks.steering import Steering
from ppln.tasks.task import Batch, Task

TASKS: dict[str, type[Task]] = {task.name: task for task in (Deblur, Steering, Pose)}

__all__ = ["TASKS", "Batch", "Deblur", "Pose", "Source", "Steering", "Task"]
