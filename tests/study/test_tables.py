"""Tables have the means and deviations of the study."""

import math
from dataclasses import replace
from pathlib import Path
from statistics import stdev

import numpy as np
import pytest
from made_study import PSNR, STUDY, claiming, everything, made, study
from scipy import stats

from ppln.study import portions, tables
from ppln.study.claims import judge
from ppln.study.rows import Row, Table
from ppln.study.steering import DONKEY, DRIVING


def verdicts(study, results):
    return [judge(study, claim, results) for claim in study.claims]


def cells(text, title, section="### All systems"):
    """A row of a table: the head's names -> cells."""
    lines = text.partition(section)[2].strip().splitlines()
    head, row = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (lines[0], next(line for line in lines if line.startswith(f"| {title} ")))
    )
    return dict(zip(head, row, strict=True))


def test_the_table_has_means_and_deviations():
    text = tables.markdown(STUDY, study(*everything()))
    ours = cells(text, "our network")
    assert ours["parameters"] == "11.00 M"
    assert ours["seeds"] == "3"
    assert ours["PSNR, scenes"] == f"34.25 ± {stdev(PSNR['ours']):.2f}"
    assert ours["SSIM, scenes"] == "0.910 ± 0.010"
    assert ours["NRMSE, scenes"] == "0.100 ± 0.000"
    assert ours["PSNR, slider"] == "26.25 ± 0.25"
    assert ours["dB lost at unseen times, scenes-53"] == "1.50 ± 0.00"
    assert ours["PSNR, paper (HQF)"] == ""
    fixed = cells(text, "EDI")
    assert fixed["parameters"] == "none"
    assert fixed["seeds"] == ""
    assert fixed["PSNR, scenes"] == "30.00"
    assert fixed["dB lost at unseen times, scenes-53"] == "0.00"
    assert "at the others, the blurry frame is 0.25 dB nearer to the truth" in text
    assert [fixed[f"{name}, paper (HQF)"] for name in ("NRMSE", "PSNR", "SSIM")] == [
        "0.336",
        "17.822",
        "0.515",
    ]
    assert set(cells(text, "later").values()) == {"later", ""}
    took = cells(text, "our network", "### What it took")
    assert took["sharp frames"] == "1,920"
    assert took["seconds"] == "61"
    assert took["loss at the end"] == "0.0200 ± 0.0100"
    assert took["PSNR, validation"] == "29.25 ± 0.25"
    assert "12,288 samples of 128 x 128, 10 steps of 48, 4 frames of each" in text
    assert "scenes (3 samples), scenes-53 (3 samples), slider (3 samples)" in text
    assert "Revisions: abcdef012345, abcdef012345 with changes. torch 2.13.0." in text


def test_samples_in_which_nothing_moves_are_left_out_of_a_mean():
    some = everything()
    assert "that move" not in tables.markdown(STUDY, study(*some))
    fixed = next(result for result in some if result["row"] == "blurry")
    fixed["sets"]["scenes"]["per_sample"]["psnr"] = [90.0, 31.0, 33.0]
    text = tables.markdown(STUDY, study(*some))
    assert cells(text, "EDI")["PSNR, scenes that move"] == "32.00"
    # Per sample ours has 1 dB less, the same and 1 dB more than in the mean.
    assert cells(text, "our network")["PSNR, scenes that move"] == "34.75 ± 0.25"
    assert "scenes: nothing moves in 1 of the samples" in text


def test_losses_are_counted_from_what_the_input_gains():
    """Not from what other methods gain that learn nothing either."""
    other = made("blurry", 0, 28.0) | {"row": "edi"}
    other["sets"]["scenes-53"]["metrics"]["psnr_unseen"] += 0.5  # better by 0.75 dB; the input by 0.25
    rows = (*STUDY.rows, Row("edi", "another", "deblur-edi"))
    four = replace(STUDY, rows=rows, tables=(Table("All systems", tuple(row.key for row in rows)),))
    for found in ([*everything(), other], [other, *everything()]):
        text = tables.markdown(four, study(*found))
        assert "at the others, the blurry frame is 0.25 dB nearer to the truth" in text
        lost = "dB lost at unseen times, scenes-53"
        losses = [cells(text, title)[lost] for title in ("another", "EDI", "our network")]
        assert losses == ["-0.50", "0.00", "1.50 ± 0.00"]


def test_without_the_input_nothing_is_said_of_it():
    text = tables.markdown(STUDY, study(*(made("ours", seed, 34.0) for seed in range(2))))
    assert "nearer to the truth" not in text
    assert "nothing moves" not in text
    some = everything()
    some[-1]["sets"]["slider"]["per_sample"] = {}
    slider = next(result for result in some if result["row"] == "blurry")["sets"]["slider"]
    slider["per_sample"]["psnr"] = [90.0, 1.0, 1.0]  # the first test set alone has a column for it
    assert "nothing moves" not in tables.markdown(STUDY, study(*some))


def test_every_line_of_a_table_is_as_long():
    text = tables.markdown(claiming(("ours", "theirs", 0.5)), study(*everything()))
    groups: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            groups[-1].append(line)
        elif groups[-1]:
            groups.append([])
    for table in filter(None, groups):
        assert len({len(line) for line in table}) == 1
        assert len({line.count("|") for line in table}) == 1


def test_networks_of_another_size_are_named():
    found = everything()
    for result in found:
        if result["row"] == "theirs":
            result["parameters"] = 5_000_000
    found.append({**made("other", 0, 31.0), "parameters": 11_200_000})
    assert "have 11.0 M parameters within 5%, but for theirs (-55%)." in tables.markdown(STUDY, study(*found))


def test_claims_are_judged_by_seeds():
    claims = [("ours", "theirs", 0.5), ("ours", "theirs", 2.0), ("theirs", "ours", 0), ("ours", "blurry", 1)]
    claims.append(("ours", "later", 0.0))
    claimed, content = claiming(*claims), study(*everything())
    *found, unknown = verdicts(claimed, content["results"])
    assert unknown is None
    assert [verdict.holds for verdict in found] == [True, False, False, True]
    differences = np.subtract(PSNR["ours"], PSNR["theirs"])
    assert found[0].difference == pytest.approx(differences.mean())
    assert found[0].seeds == 3
    want = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert found[0].over_seeds == pytest.approx((want.low, want.high))
    against_fixed = stats.ttest_1samp(np.subtract(PSNR["ours"], 30.0), 0).confidence_interval(0.95)
    assert found[3].over_seeds == pytest.approx((against_fixed.low, against_fixed.high))
    assert found[0].over_samples == pytest.approx((1.0, 1.0))  # every sample differs by the same
    text = tables.markdown(claimed, content)
    row = cells(text, "our network > their network by 0.5 or more: PSNR, scenes", "### Claims")
    assert row["difference"] == "+1.00"
    assert row["holds"] == "yes"
    assert row["95 % over seeds"] == f"{want.low:+.2f} to {want.high:+.2f}"
    assert cells(text, "our network > later: PSNR, scenes", "### Claims")["holds"] == "not measured"


def test_a_claim_that_other_seeds_could_reverse_does_not_hold():
    found = [made("ours", seed, psnr) for seed, psnr in enumerate((30.0, 36.0))]
    found += [made("theirs", seed, 32.0) for seed in range(2)]
    (verdict,) = verdicts(claiming(("ours", "theirs", 0.5)), found)
    assert verdict.difference == 1.0
    assert verdict.over_seeds is not None
    assert verdict.over_seeds[0] < 0
    assert not verdict.holds


def test_one_seed_has_no_interval():
    found = [made("ours", 1, 34.0), made("theirs", 0, 30.0), made("theirs", 1, 33.0)]
    (verdict,) = verdicts(claiming(("ours", "theirs", 0.5)), found)
    assert (verdict.difference, verdict.seeds, verdict.over_seeds) == (1.0, 1, None)  # of the seed both have
    assert verdict.holds


def test_no_difference_is_not_higher():
    found = [made("ours", 0, 33.0), made("theirs", 0, 33.0)]
    (verdict,) = verdicts(claiming(("ours", "theirs", 0)), found)
    assert not verdict.holds


def test_no_results():
    assert tables.markdown(STUDY, study()) == "There are no results yet.\n"


def test_metrics_that_are_not_finite_are_shown():
    text = tables.markdown(STUDY, study(made("ours", 0, 34.0) | {"sets": {}}, made("blurry", 0, math.inf)))
    assert cells(text, "EDI")["PSNR, scenes"] == "inf"
    assert cells(text, "our network")["PSNR, scenes"] == ""


@pytest.fixture
def driven():
    """What the repository has of the study of steering, on real video."""
    path = Path(__file__).parents[2] / "benchmarks" / "results" / "steering-donkey" / "study.json"
    return portions.read(path)


def test_angles_that_a_training_compares_are_counted_as_the_task_does(driven):
    for every, compared in ((1, 10), (2, 5)):
        for result in driven["results"]:
            result["settings"]["task"] |= {"train_every": every}
        took = cells(tables.markdown(DONKEY, driven), "PPLN", "### What it took")
        assert int(took["angles"].replace(",", "")) == compared * int(took["samples"].replace(",", ""))


def test_rows_that_lack_a_metric_are_named(driven):
    """Their results are of before it was measured, and count as done."""
    told = "RMSE between rows, donkey, was not measured yet when these were tested"
    assert "was not measured" not in tables.markdown(DONKEY, driven)
    for result in driven["results"]:
        if result["row"] in ("hu", "humod"):
            del result["sets"]["donkey"]["metrics"]["rmse_deg_between"]
    text = tables.markdown(DONKEY, driven)
    rows = "Hu: one row; HuMod: ten rows, ten outputs"
    assert f"{told}, which count as done (another --out does them anew): {rows}." in text
    between = "RMSE between rows, donkey"
    assert cells(text, "Hu: one row", "### The paper's networks")[between] == ""
    assert cells(text, "PPLN", "### The paper's networks")[between] != ""


def test_eva_stands_beside_rmse_by_day_and_at_night(driven):
    driven["budget"]["task"] |= DRIVING.settings["task"]
    for k, result in enumerate(driven["results"]):
        found = result["sets"]["donkey"]
        found["metrics"] |= {"eva_day": 0.8 + 0.01 * k, "eva_night": 0.9 + 0.001 * k}
        result["sets"] = {"driving": found}
    row = cells(tables.markdown(DRIVING, driven), "PPLN", "### The paper's networks")
    found = [of["sets"]["driving"]["metrics"] for of in driven["results"] if of["row"] == "ppln"]
    for light, paper in (("by day", "0.881 ± 0.010"), ("at night", "0.958 ± 0.001")):
        values = [metrics[f"eva_{light.split()[-1]}"] for metrics in found]
        assert row[f"EVA {light}, driving"] == f"{np.mean(values):.3f} ± {stdev(values):.3f}"
        assert row[f"EVA {light}, paper (DDD20)"] == paper
