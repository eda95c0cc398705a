"""python -m ppln: the command line, for `torchrun -m ppln train ...`."""

from ppln.cli import main

main()
