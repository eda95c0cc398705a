"""The page of a study is generated whole, from its result files."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_study import STUDY, everything, made, study

from ppln.forms import read_json, write_json
from ppln.study import STUDIES, page, tables, tune
from ppln.study.portions import merge
from ppln.study.rows import Row, Search

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"

SEARCHED = replace(
    STUDY,
    rows=(
        STUDY.rows[0],
        Row(
            "theirs",
            "their network",
            "deblur-unet-14",
            task={"edges": 0.0},
            optimizer={"learning_rate": 3e-3},
        ),
        Row("ours", "our network", "deblur-ppln", task={"edges": 2.0}, optimizer={"learning_rate": 1e-3}),
    ),
    search=Search(("theirs", "ours"), tasks=({"edges": 0.0}, {"edges": 2.0}), close=0.3, note="A remark."),
)
TRIED = {
    "about": {
        "git": {"revision": "fedcba9876543210", "dirty": False},
        "versions": {"torch": "2.11.0"},
        "gpus": ["H200"],
        "time": "2026-01-01T00:00:00Z",
    },
    "budget": {"optimizer": {"steps": 500}},
    "tried": {
        "ours": [
            {"learning_rate": 1e-3, "edges": 0.0, "psnr": 30.0},
            {"learning_rate": 3e-3, "edges": 2.0, "psnr": 31.234},
        ],
        "theirs": [{"learning_rate": 3e-3, "edges": 0.0, "psnr": None}],
    },
}


@pytest.mark.parametrize(
    ("name", "files", "searched"),
    [
        ("deblur", ("study.json", "study-seeds.json"), "tune.json"),
        ("steering-donkey", ("steering-donkey/study.json",), "steering-donkey/tune.json"),
    ],
)
def test_the_page_in_the_repository_is_that_of_its_results(name, files, searched):
    """If this fails: `ppln reproduce NAME --page docs/study-NAME.md`, as the page says at its top."""
    found = merge([RESULTS / file for file in files])
    want = page.markdown(STUDIES[name], found, read_json(RESULTS / searched, tune.FORM))
    assert (ROOT / "docs" / f"study-{name}.md").read_text() == want


def test_a_page_is_whole():
    found = study(*everything())
    text = page.markdown(replace(SEARCHED, note="Mind this."), found, TRIED)
    titles = [line for line in text.splitlines() if line.startswith(("# ", "## "))]
    assert titles == [
        "# The study of deblurring",
        "## Tables",
        "## How learning rates were searched",
        "## How it is done",
        "## Provenance",
    ]
    assert text.index("**Note.** Mind this.") < text.index("## Tables")
    assert tables.markdown(SEARCHED, found).strip() in text
    bare = replace(SEARCHED, title="", note="", method="", words="", about="", search=None)
    titles = [
        line for line in page.markdown(bare, found, TRIED).splitlines() if line.startswith(("# ", "## "))
    ]
    assert titles == ["# The study of deblur", "## Tables", "## Provenance"]


def cells(text, title):
    return [
        cell.strip() for cell in next(x for x in text.splitlines() if x.startswith(f"| {title} ")).split("|")
    ]


def test_the_search_of_rates():
    text = page.markdown(SEARCHED, study(*everything()), TRIED).partition("## How learning")[2]
    assert "Trainings of 500 steps with one seed, judged by PSNR" in text
    assert "within 0.3 of the best" in text
    assert "A remark." in text
    assert cells(text, "our network")[2:-1] == ["2", "0.003", "0.001", "2", "31.23"]
    assert cells(text, "their network")[2:-1] == ["1", "0.003", "0.003", "0", ""]  # it diverged
    assert text.index("our network") < text.index("their network")  # the best first
    study_of = replace(SEARCHED, search=replace(SEARCHED.search, close=0.0))
    text = page.markdown(study_of, study(*everything()), TRIED).partition("## How learning")[2]
    assert "The best rate is taken." in text
    assert "within" not in text.partition("## How it is done")[0]


def test_provenance():
    text = page.markdown(SEARCHED, study(*everything()), TRIED).partition("## Provenance")[2]
    assert cells(text, "fedcba987654")[2:6] == ["search of rates", "", "torch 2.11.0", "H200"]
    assert cells(text, "abcdef012345")[2:6] == ["trainings", "4", "torch 2.13.0", "H200"]
    assert cells(text, "abcdef012345 with changes")[2:4] == ["trainings", "2"]


def test_more_seeds_of_some_rows_have_tables_of_their_own():
    few = [*everything(), made("later", 0, 30.0)]
    more = [*few, *(made("ours", k, 36.0 + k) for k in (3, 4)), made("theirs", 3, 30.0)]
    text = page.markdown(STUDY, study(*more))
    assert page.markdown(STUDY, study(*few)).partition("## How it is done")[0] in text  # as without them
    text = text.partition("## More seeds")[2].partition("## How it is done")[0]
    assert cells(text, "our network")[2:4] == ["11.00 M", "5"]
    matrix = text.partition("scenes: the row minus the column")[2]
    # Seeds that both have: 1, 1.25, 0.75 and 9 dB.
    assert cells(matrix, "our network")[2].startswith("+3.00 (-3.37 to")
    assert "slider: the row minus the column" in text


def test_seeds_that_all_rows_have_are_in_all_tables():
    """Also if they are not those of the study."""
    found = [made(row, seed, 30.0 + seed) for row in ("ours", "theirs") for seed in (0, 7)]
    text = page.markdown(STUDY, study(*found))
    assert "## More seeds" not in text
    assert cells(text, "our network")[3] == "2"
    other = page.markdown(STUDY, study(made("ours", 8, 31.0), made("theirs", 9, 30.0)))
    assert "## More seeds" not in other
    assert cells(other, "our network")[3] == "1"


def test_a_page_replaces_its_own_kind_only(tmp_path):
    path, found, search = tmp_path / "study.md", study(*everything()), tmp_path / "tune.json"
    write_json(search, TRIED)
    assert page.search_file([tmp_path / "none", tmp_path]) == search
    assert page.search_file([tmp_path / "none"]) is None
    page.write_page(path, SEARCHED, found, search)
    assert path.read_text() == page.markdown(SEARCHED, found, TRIED)
    page.write_page(path, SEARCHED, found)
    assert path.read_text() == page.markdown(SEARCHED, found)
    for other in (b"# Results\n", bytes(range(128, 256))):
        path.write_bytes(other)
        with pytest.raises(ValueError, match=r"study.md is there, and is no page of the study deblur"):
            page.write_page(path, SEARCHED, found)
        assert path.read_bytes() == other
    search.write_text("{}")
    path.unlink()
    with pytest.raises(ValueError, match=r"tune\.json"):
        page.write_page(path, SEARCHED, found, search)
    assert not path.exists()
