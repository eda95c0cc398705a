"""Messages in the words of a command line, exit codes and advice."""

import sys

import pytest
import torch

from ppln.engine.train import Interrupted
from ppln.engine.watch import NotFinite
from ppln.errors import explain, in_options, printable

FLAGS = {
    name: f"--{name.replace('_', '-')}"
    for name in ("exposure_us", "frames", "frame", "events", "out", "compare", "between", "overwrite")
} | {"repair": "--repair", "recording": "RECORDING", "split": "--use"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("exposure_us is (7, 7); its end", "--exposure-us is (7, 7); its end"),
        ("give a shorter exposure_us, or fewer frames", "give a shorter --exposure-us, or fewer frames"),
        ("correct exposure_us.", "correct --exposure-us."),
        ("frames has 3; the recording has 1", "--frames has 3; the recording has 1"),
        ("a.h5: frames is empty", "a.h5: --frames is empty"),
        ("split is 'val', and", "--use is 'val', and"),
        ("out is a and compare is b, the same", "--out is a and --compare is b, the same"),
        ("x exists; give overwrite=True to replace it", "x exists; give --overwrite to replace it"),
        ("between='carry' or between='hold' fills it", "--between carry or --between hold fills it"),
        ("frame needs exposure_us=(BEGIN, END), as", "--frame needs --exposure-us BEGIN END, as"),
        ("sort the events, or read with repair=True", "sort the events, or give --repair"),
        ("recording is x", "RECORDING is x"),
        ("frames: there is no 'a'", "--frames: there is no 'a'"),
        ("x holds one camera; leave out frame=3", "x holds one camera; leave out --frame 3"),
    ],
)
def test_arguments_become_options(text: str, told: str):
    assert in_options(text, FLAGS) == told


@pytest.mark.parametrize(
    "text",
    [
        "the frames are 60 x 70, but the sensor of the events is 4 x 5",  # mere words
        "frame 3 has an exposure of 0 us",
        "the events and frames are there",
        "a.h5: frames: there are none",
        "/data/exposure_us/a.h5 is empty",  # names of files, and in files
        "exposure_us.h5 is empty",
        "a.h5: dataset exposure_us has 3 rows",
        "there is no 'exposure_us'",
        "give partial=True, or options such as width=8",  # of no option here
        "write what `read(path, repair=True)` gives",  # code
        "repair a copy: ppln convert-recording RECORDING COPY.h5 --repair",
    ],
)
def test_other_words_stay(text: str):
    assert in_options(text, FLAGS) == text


def test_a_phrase_for_what_is_no_option():
    assert in_options("or read with repair=True", {"repair": "repair a copy"}) == "or repair a copy"


def test_errors_carry_code_and_advice():
    flags = {name: f"--{name.replace('_', '-')}" for name in ("learning_rate", "clip_norm", "resume")}
    assert explain(NotFinite(7, "it is inf", 5), flags) == (
        "step 7: it is inf; step 5 is saved: lower --learning-rate or --clip-norm, and --resume",
        1,
    )
    assert explain(Interrupted(15, 3, "go on"), {}) == ("stopped after step 3, which is saved; go on", 143)
    assert explain(KeyboardInterrupt(), {}) == ("interrupted", 130)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError(), MemoryError(), RuntimeError("x: can't allocate memory: 9")]
)
def test_too_little_memory(error: BaseException):
    text, code = explain(error, {"batch": "--batch", "precision": "--precision"})
    assert text.startswith("out of memory; lower --batch, or use --precision bf16")
    assert code == 1
    assert explain(error, {})[0].startswith("out of memory; give it less at a time")


def test_without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    assert explain(MemoryError(), {}) == ("out of memory; give it less at a time", 1)
    assert explain(RuntimeError("odd"), {}) == ("", 1)


def test_what_nobody_foresaw_is_not_explained():
    assert explain(KeyError("x"), {}) == ("", 1)
    assert explain(MemoryError("of our own; give fewer"), {}) == ("of our own; give fewer", 1)


def test_a_missing_package():
    told = "No module named 'x'", "a needs x; run: pip install 'x'"
    first, second = (explain(ModuleNotFoundError(text), {})[0] for text in told)
    assert first == "No module named 'x'; run: pip install 'torch-ppln[all]'"
    assert second == told[1]


def test_text_is_made_printable():
    for plain in ("", "speed", "Größe 5 µs", "名前", r"a\b"):
        assert printable(plain) == plain
    assert printable("a\x1b]0;title\x07b\r\n\x9b31m\u202e\udc80") == (
        r"a\x1b]0;title\x07b\r\n\x9b31m\u202e\udc80"
    )
    assert len(printable("x" * 10**6)) < 2010
    assert printable("x" * 2000) == "x" * 2000
