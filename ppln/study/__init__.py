"""Studies by name: what is compared, and how. Only the command line is above."""

from ppln.study import deblur, pose, steering
from ppln.study.rows import Study

STUDIES: dict[str, Study] = {
    study.name: study for study in (deblur.STUDY, steering.DRIVING, steering.DONKEY, pose.FULL, pose.HALF)
}
