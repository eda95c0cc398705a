"""A study run, and its tables: what `ppln reproduce` does."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ppln.errors import HELP, Help
from ppln.names import meant
from ppln.options import Command, command
from ppln.progress import Screen
from ppln.study import STUDIES
from ppln.study.budget import Reproduce
from ppln.study.rows import Study


@dataclass(frozen=True)
class Reproduction:
    """Train and evaluate all methods that this study compares, but for those that are done already; then make
    its tables, in which each method is a row."""

    how: Reproduce = Reproduce()  # noqa: RUF009
    """Options."""
    add: tuple[Path, ...] = ()
    """More study.json files, which this command wrote elsewhere, as on another machine: what is in them
    counts as done. With --tune: where two learning rates are close, what is in them decides. Default:
    none."""
    page: Path | None = None
    """Write the tables and all that is told of them to this Markdown file, as docs/study-deblur.md is. If
    --tune left a tune.json, in OUT or beside a file of --add, the page also tells how learning rates were
    found. Default: print the tables."""


_LINES = {
    "deblur": "deblurring, of synthetic scenes. Needs no files",
    "steering": "steering, of synthetic drives. Needs no files",
    "steering-donkey": "steering, on real video of a model car. Reads data/donkey of the current folder, "
    "which `ppln prepare donkey` makes",
    "pose": "pose, of synthetic people with recorded motions. Reads data/cmu_bvh.zip of the current folder, "
    "and for the row dhp19 data/DHP_CNN.model, without which that row is left out",
    "pose-half": "pose, with pictures half as high and wide. Reads data/cmu_bvh.zip of the current folder",
}
_MORE = (
    "docs/data.md tells where the files are from. A whole study takes hours on a large GPU (docs/study-*.md "
    "tell what each training took) and, by estimate, days to weeks on a CPU; --rows, --seeds and --minutes "
    "do a part of it. The same pages have the tables of studies that were run; docs/architecture.md has a "
    "glossary, of words such as mixed head and plain twin."
)


class WantedStudy(NamedTuple):
    study: Study
    options: Reproduction


def usage() -> str:
    """What `ppln reproduce --help` says."""
    lines = [
        "usage: ppln reproduce STUDY [OPTIONS]\n",
        "Repeat a study: train and evaluate all methods that it compares, on the same data and for as many",
        "steps, and make its tables, in which each method is a row.",
        "`ppln reproduce STUDY --help` lists the options. STUDY is one of:\n",
    ]
    for name, line in _LINES.items():
        lines += textwrap.wrap(f"{line}.", 96, initial_indent=f"  {name:17}", subsequent_indent=" " * 19)
    lines += ["", *textwrap.wrap(_MORE, 98), ""]
    listed: dict[tuple[str, ...], list[str]] = {}  # studies by their rows: some have the same
    for name, study in STUDIES.items():
        listed.setdefault(tuple(f"  {row.key:24}{row.title}" for row in study.rows), []).append(name)
    for rows, names in listed.items():
        lines += [f"Rows of {' and of '.join(names)}:", *rows]
    return "\n".join(lines)


def asked_for(words: Sequence[str]) -> tuple[Command, WantedStudy]:
    """What `ppln reproduce` is asked for by these words. `--help` among them raises Help."""
    if not words:
        raise ValueError(f"STUDY is missing; give {', '.join(STUDIES)}; see ppln reproduce --help")
    name, *rest = words
    if name in HELP:
        raise Help(usage())
    if name not in STUDIES:
        raise ValueError(f"there is no study {name!r}; {meant(name, STUDIES)}")
    defaults = Reproduction(Reproduce(Path(f"runs/reproduce-{name}")))
    about = f"{Reproduction.__doc__} This study: {_LINES.get(name, name)}."
    asked = command(defaults, f"ppln reproduce {name}", about)
    if STUDIES[name].task != "deblur":
        asked = asked._replace(options=[option for option in asked.options if option.name != "textures"])
    return asked, WantedStudy(STUDIES[name], asked.call(asked.given(rest)))


def run(wanted: WantedStudy, screen: Screen) -> str:
    from ppln.study import tables, tune
    from ppln.study.page import check_page, search_file, write_page
    from ppln.study.portions import FILE
    from ppln.study.reproduce import reproduce

    study, how, add, page = wanted.study, wanted.options.how, wanted.options.add, wanted.options.page
    if page is not None:
        check_page(page, study)  # an error now, rather than after all trainings
    if how.tune and page is not None:
        raise ValueError(f"page is {page}, but tune=True makes no tables; leave it out")
    if how.tune:
        taken = tune.tune(study, how, screen.say, add)
        lines = [f"{key}: take {tune.line(of)}" for key, of in taken.items()]
        return "\n".join([*lines, f"wrote {how.out / tune.FILE}"])
    done, found = reproduce(study, how, screen.say, add)
    if page is None:
        told = tables.markdown(study, found)
    elif found["results"]:
        write_page(page, study, found, search_file([how.out, *(file.parent for file in add)]))
        told = f"wrote {page}"
    else:
        told = f"there are no results yet; {page} is left as it is"
    return f"{told}\n{len(done.now)} rows and seeds done now, {len(done.left)} left; wrote {how.out / FILE}"
