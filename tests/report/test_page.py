"""The page of the demo: it holds everything, loads nothing, and says what it was given."""

import base64
import re
from html.parser import HTMLParser

import imageio.v3 as imageio
import numpy as np
import pytest

from ppln.report.page import Method, Pixel, Scene, Unit, draw_curves, draw_strip, picture_uri, render, uri

VOID = {"meta", "img", "input", "source"}


class Reader(HTMLParser):
    """Elements with their attributes, and the cells of tables; fails on tags that do not match."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.rows, self.words = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def made(titles=("EDI", "ours"), frames=14, size=(24, 32), unit=True):
    random = np.random.default_rng(0)

    def method(title, k):
        light = random.random((53, 2), np.float32)
        metrics = {"psnr": 20.126 + k, "ssim": 0.51234 + k / 10, "nrmse": 0.2 - k / 100}
        return Method(title, random.integers(0, 256, (frames, *size), np.uint8), light, metrics)

    knots = np.array([0, 0.25, 0.5, 1], np.float32)
    lines = [np.array(v, np.float32) for v in ([1, -1, 0], [0, 0.5, 0])]
    return Scene(
        method("blurry", 0),
        [method(title, k + 1) for k, title in enumerate(titles)],
        method("truth", 9),
        [
            Pixel(3, 4, np.array([0.1, 0.2]), np.array([True, False])),
            Pixel(20, 30, np.zeros(0), np.zeros(0, bool)),
        ],
        Unit("the potential of a unit", random.random(209, np.float32), knots, *lines) if unit else None,
        (slice(2, 8), slice(4, 12)),
        520.0,
    )


@pytest.fixture(scope="module")
def read():
    return Reader(render(made(), b"a film", {"seconds": "1 < 2"}))


def test_every_picture_is_in_it(read):
    pictures = [attributes["src"] for attributes in read.all("img")]
    scene = made()
    for method in (scene.blurry, *scene.methods, scene.truth):
        for k in (1, 6, 12):  # of 14, at 0.1, 0.5 and 0.9 of the time
            assert picture_uri(method.frames[k]) in pictures
            assert picture_uri(method.frames[k][2:8, 4:12]) in pictures
    assert read.all("video")[0]["src"] == uri(b"a film", "video/mp4")
    for address in (*pictures, *(attributes["srcset"] for attributes in read.all("source"))):
        kind, content = re.fullmatch(r"data:image/(png|jpeg);base64,(.+)", address).groups()
        assert imageio.imread(base64.b64decode(content), extension=f".{kind}").size


def test_every_picture_has_a_description(read):
    described = [attributes["alt"] for attributes in read.all("img")]
    assert all(described)
    assert len(set(described)) == len(described)
    assert read.all("video")[0]["aria-label"]
    assert read.all("label")[0]["for"] == read.all("input")[0]["id"]


def test_sprites_hold_all_frames(read):
    sprites = [a for a in read.all("img") if a.get("class") == "sprite"]
    assert len(sprites) == 3  # two methods and the truth
    content = base64.b64decode(sprites[-1]["src"].partition(",")[2])
    assert imageio.imread(content, extension=".jpg").shape[:2] == (14 * 24, 32)
    assert read.all("input")[0]["max"] == "13"


def test_slider_takes_some_of_many_frames():
    read = Reader(render(made(frames=53), b"", {}))
    assert read.all("input")[0]["max"] == "26"


def test_table_has_the_metrics(read):
    rows = [row for row in read.rows if row[0] in ("blurry", "EDI", "ours") or row[1] == "PSNR, dB"]
    assert rows[0][1:] == ["PSNR, dB", "SSIM", "NRMSE"]
    assert rows[1:] == [
        ["blurry", "20.13", "0.5123", "0.2000"],
        ["EDI", "21.13", "0.6123", "0.1900"],
        ["ours", "22.13", "0.7123", "0.1800"],
    ]
    assert sum(attributes.get("class") == "best" for attributes in read.all("td")) == 3


def test_nothing_is_loaded(read):
    for _, attributes in read.elements:
        for name in ("src", "href", "srcset", "poster"):
            assert attributes.get(name, "data:").startswith("data:")
    assert not read.all("link")
    assert "default-src 'none'" in read.all("meta")[2]["content"]


def test_words_are_escaped(read):
    assert "1 < 2" in read.words
    text = render(made(titles=("<b>", "a & b")), b"", {})
    assert "<b>" in Reader(text).rows[0]
    assert "<b>" not in text


def test_without_a_unit():
    text = render(made(unit=False), b"", {})
    assert "no PP layer" in text
    tall, flat = (imageio.imread(draw_curves(made(unit=unit)), extension=".png") for unit in (True, False))
    assert tall.shape[0] > 1.5 * flat.shape[0]


def test_dark_is_dark():
    light, dark = (imageio.imread(draw_curves(made(), dark=d), extension=".png") for d in (False, True))
    assert light.shape == dark.shape
    assert light[0, 0, 0] == 255
    assert dark[0, 0, 0] < 40


def test_strip_shows_the_frames():
    """A bright method is bright in its column, and nowhere else."""
    scene = made(titles=("ours",))
    black, white = (np.full_like(scene.truth.frames, value) for value in (0, 255))
    scene = scene._replace(
        blurry=scene.blurry._replace(frames=black),
        methods=[scene.methods[0]._replace(frames=white)],
        truth=scene.truth._replace(frames=black),
    )
    strip = imageio.imread(draw_strip(scene), extension=".png")[..., 0]
    middle = strip[strip.shape[0] // 2 - 20]
    left, centre, right = (middle[round(middle.size * share)] for share in (0.2, 0.5, 0.8))
    assert (left, centre, right) == (0, 255, 0)
