"""Studies, by the name of their task: what is compared, and how. Only the command line is above."""

from ppln.study import deblur
from ppln.study.rows import Study

STUDIES: dict[str, Study] = {"deblur": deblur.STUDY}
