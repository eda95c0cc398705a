"""Portions of a study become one; files that do not belong together are refused."""

import pytest
from made_study import everything, made, put, study

from ppln.study.portions import merge, read, write


def test_portions_are_merged(tmp_path):
    found = everything()
    a = put(tmp_path / "a.json", study(*found[:3]))
    b = put(tmp_path / "b.json", study(*reversed(found[2:])))
    merged = merge([a, b])
    # In the order in which rows come, with rising seeds.
    assert [(r["row"], r["seed"]) for r in merged["results"]] == [
        ("ours", 0), ("ours", 1), ("ours", 2), ("blurry", 0), ("theirs", 0), ("theirs", 1), ("theirs", 2),
    ]  # fmt: skip
    write(tmp_path / "study.json", merged)
    assert merge([tmp_path / "study.json"]) == merged
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "b.json", "study.json"]


def test_test_sets_of_one_training_are_merged(tmp_path):
    a = put(tmp_path / "a.json", study(made("ours", 0, 34.0, sets=("scenes",))))
    b = put(tmp_path / "b.json", study(made("ours", 0, 34.0, sets=("slider",))))
    (result,) = merge([a, b])["results"]
    assert result["sets"].keys() == {"scenes", "slider"}


def test_of_the_same_training_done_twice_the_first_is_kept(tmp_path):
    """How long it took, on what and when, is not what came out."""
    first, again = made("ours", 0, 34.0, sets=("scenes", "slider")), made("ours", 0, 34.0)
    again["training"] |= {
        "seconds": 99.0,
        "samples_per_s": 5.0,
        "on": "CPU",
        "about": {"git": None, "versions": {}},
    }
    for k, result in enumerate((first, again)):
        for of in result["sets"].values():
            of["seconds"] = float(k)
    files = [put(tmp_path / f"{k}.json", study(result)) for k, result in enumerate((first, again))]
    (result,) = merge(files)["results"]
    ((first,), (again,)) = (read(file)["results"] for file in files)
    assert list(result["sets"]) == ["scenes", "slider", "scenes-53"]
    assert result.pop("sets") == {**again["sets"], **first.pop("sets")}
    assert result == first


@pytest.mark.parametrize(
    ("data", "same"),
    [
        ([4.5, 1.25, 1.006], True),  # a quiet one has some events more
        ([4.5, 1.26, 0.98], False),
        ([4.53, 1.258, 1.006], False),  # all have
        ([4.5, 1.25], False),
    ],
)
def test_samples_made_on_another_machine_may_differ_a_little(tmp_path, data, same):
    other = made("theirs", 0, 33.0)
    other["sets"]["slider"] |= {"data": {"x_rms": data}, "samples": len(data), "per_sample": {}}
    files = [put(tmp_path / "a.json", study(made("ours", 0, 34.0))), put(tmp_path / "b.json", study(other))]
    if same:
        assert len(merge(files)["results"]) == 2
    else:
        with pytest.raises(ValueError, match="have other samples in the test set slider, by their x_rms"):
            merge(files)


def test_options_that_came_later_have_their_defaults(tmp_path):
    old, new = made("ours", 0, 34.0), made("ours", 1, 34.0)
    new["settings"]["task"]["slow"] = new["sets"]["slider"]["settings"]["slow"] = False
    files = [put(tmp_path / f"{k}.json", study(result)) for k, result in enumerate((old, new))]
    assert len(merge(files)["results"]) == 2
    new["settings"]["task"]["slow"] = True
    put(files[1], study(new))
    with pytest.raises(ValueError, match=r"differ in the settings of ours: task.slow False and True"):
        merge(files)


@pytest.mark.parametrize(
    ("content", "lacks"),
    [({"format": "ppln study", "version": 1}, "study"), (study({}), r"results\[0\]\.row")],
)
def test_files_that_lack_something_are_named(content, lacks, tmp_path):
    message = rf"a.json is no study.json of `ppln reproduce` \({lacks} is missing\)"
    with pytest.raises(ValueError, match=message):
        merge([put(tmp_path / "a.json", content)])


def test_conflicts_name_both_files(tmp_path):
    first = put(tmp_path / "a.json", study(made("ours", 0, 34.0)))
    other_data = made("theirs", 0, 33.0)
    other_data["sets"]["slider"]["data"] = {"x_rms": [4.5, 1.27, 0.98]}  # of the same mean
    other_training = made("ours", 0, 34.0)
    other_training["training"]["loss"] = 0.02
    other_metrics = made("ours", 0, 31.0) | {"training": made("ours", 0, 34.0)["training"]}
    for content, message in (
        (study(made("ours", 1, 34.0), steps=20), "differ in budget: optimizer.steps 10 and 20"),
        (
            study(made("ours", 1, 34.0, rate=2e-3)),
            "the settings of ours: optimizer.learning_rate 0.001 and 0.002",
        ),
        (
            study(other_metrics),
            "both have ours, seed 0, done twice and with other results: metrics.scenes.psnr 34.0 and 31.0; "
            "leave one of the files out",
        ),
        (study(other_training), "ours, seed 0, .* with other results: training.loss 0.01 and 0.02"),
        (study(other_data), "other samples in the test set slider, by their x_rms"),
        (study(study="pose"), "study: 'deblur' and 'pose'"),
    ):
        second = put(tmp_path / "b.json", content)
        with pytest.raises(ValueError, match=message) as error:
            merge([first, second])
        assert str(first) in str(error.value)
        assert str(second) in str(error.value)


def test_what_is_no_study_is_refused(tmp_path):
    with pytest.raises(ValueError, match="files is empty"):
        merge([])
    with pytest.raises(FileNotFoundError, match=r"there is no .*none.json"):
        merge([tmp_path / "none.json"])
    for content, message in (
        ({}, "format is missing"),
        ({**study(), "version": 2}, "'ppln study' of version 2, this ppln reads 1"),
    ):
        with pytest.raises(ValueError, match=message):
            merge([put(tmp_path / "a.json", content)])
