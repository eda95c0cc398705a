"""BVH: hand-written files with positions known, the clips of CMU, and thousands of broken files."""

import math
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hostile import outcomes

from ppln.datasets.synthetic.people.bvh import Motion, list_bvh, parse_bvh, read_bvh, read_bvh_folder

CMU = Path(__file__).parents[4] / "../shared/data/mocap/cmu_bvh.zip"
needs_cmu = pytest.mark.skipif(not CMU.exists(), reason="the CMU clips are not there")

ARM = """HIERARCHY
ROOT Shoulder
{
    OFFSET 1 2 3
    CHANNELS 6 Xposition Yposition Zposition Zrotation Xrotation Yrotation
    JOINT Elbow
    {
        OFFSET 10 0 0
        CHANNELS 3 Zrotation Yrotation Xrotation
        End Site
        {
            OFFSET 5 0 0
        }
    }
    JOINT Thumb
    {
        OFFSET 0 0 4
        CHANNELS 1 Xrotation
        End Site
        {
            OFFSET 0 1 0
        }
    }
}
MOTION
Frames: 3
Frame Time: 0.01
0 0 0  0 0 0  0 0 0  0
7 0 0  90 0 0  90 0 0  0
0 0 0  30 40 50  20 -10 60  90
"""


def turn(axis, degrees):
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return np.array(
        {
            "x": [[1, 0, 0], [0, c, -s], [0, s, c]],
            "y": [[c, 0, s], [0, 1, 0], [-s, 0, c]],
            "z": [[c, -s, 0], [s, c, 0], [0, 0, 1]],
        }[axis]
    )


def test_reads_what_is_written():
    motion = parse_bvh(ARM.encode())
    assert motion.names == ("Shoulder", "Elbow", "Elbow.end", "Thumb", "Thumb.end")
    assert motion.parents == (-1, 0, 1, 0, 3)
    assert motion.channels[1] == ("Zrotation", "Yrotation", "Xrotation")
    assert motion.channels[2] == ()
    assert motion.offsets[1].tolist() == [10, 0, 0]
    assert (len(motion), motion.frames.shape, motion.frame_time_s) == (3, (3, 10), 0.01)
    assert motion.frames[2].tolist() == [0, 0, 0, 30, 40, 50, 20, -10, 60, 90]
    assert motion.index("Thumb") == 3
    with pytest.raises(ValueError, match="no joint 'Toe'; there are: Shoulder, Elbow"):
        motion.index("Toe")


def test_positions_are_analytic():
    motion = parse_bvh(ARM.encode())
    position, axes = motion.pose()
    root = np.array([1, 2, 3])
    still = [[0, 0, 0], [10, 0, 0], [15, 0, 0], [0, 0, 4], [0, 1, 4]]
    np.testing.assert_allclose(position[0] - root, still)
    # Moved by 7; a quarter turn about z at the shoulder (x becomes y) and at the elbow (x becomes -x).
    bent = [[7, 0, 0], [7, 10, 0], [2, 10, 0], [7, 0, 4], [6, 0, 4]]
    np.testing.assert_allclose(position[1] - root, bent, atol=1e-12)
    # The first channel is the outermost: the order of the file, which differs between the joints.
    shoulder = turn("z", 30) @ turn("x", 40) @ turn("y", 50)
    elbow = shoulder @ turn("z", 20) @ turn("y", -10) @ turn("x", 60)
    np.testing.assert_allclose(position[2, 1], root + shoulder @ [10, 0, 0])
    np.testing.assert_allclose(position[2, 2], root + shoulder @ [10, 0, 0] + elbow @ [5, 0, 0])
    np.testing.assert_allclose(position[2, 4], root + shoulder @ ([0, 0, 4] + turn("x", 90) @ [0, 1, 0]))
    np.testing.assert_allclose(axes[2, 1], elbow)
    np.testing.assert_array_equal(motion.positions(slice(1, None)), position[1:])


def test_layout_of_the_text_does_not_matter():
    messy = ARM.replace("\n{", " {").replace(
        "Zrotation Xrotation Yrotation", "zrotation\n\tXROTATION  Yrotation"
    )
    messy = "\ufeff" + messy.replace("\n", "\r\n").replace("MOTION", "motion\r\n") + "\r\n\r\n"
    np.testing.assert_array_equal(parse_bvh(messy.encode()).positions(), parse_bvh(ARM.encode()).positions())


def test_two_roots():
    one, two = ARM.split("MOTION")[0].split("HIERARCHY\n")[1], ARM.split("MOTION")[1]
    numbers = "\n".join(f"{line} {line}" for line in two.splitlines()[3:])
    both = parse_bvh(
        f"HIERARCHY\n{one}{one.replace('Shoulder', 'B').replace('Elbow', 'C').replace('Thumb', 'D')}MOTION\n"
        f"Frames: 3\nFrame Time: 0.01\n{numbers}\n".encode()
    )
    assert both.parents == (-1, 0, 1, 0, 3, -1, 5, 6, 5, 8)
    np.testing.assert_array_equal(both.positions()[:, 5:], both.positions()[:, :5])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("HIERARCHY", "HIERARCHI", "line 1: 'HIERARCHI' where 'HIERARCHY' should be"),
        ("OFFSET 10 0 0", "OFFSET 10 0", "line 9: 'CHANNELS' where a number should be"),
        ("OFFSET 10 0 0", "OFFSET 10 nan 0", "line 8: 'nan' where a number"),
        ("CHANNELS 1 Xrotation", "CHANNELS 7 Xrotation", "line 18: 7 where a whole number from 0 to 6"),
        ("CHANNELS 1 Xrotation", "CHANNELS 1.5 Xrotation", "line 18: 1.5 where a whole number"),
        ("CHANNELS 1 Xrotation", "CHANNELS 1 Wrotation", "line 18: channel 'Wrotation' is not known"),
        (
            "CHANNELS 1 Xrotation",
            "CHANNELS 1 Xposition",
            "line 18: joint 'Thumb' has a position that changes",
        ),
        ("JOINT Thumb", "JOINT Elbow", "there are two joints 'Elbow'"),
        ("JOINT Thumb", "JOINT Th\x1bumb", r"line 15: 'Th\\x1bumb' where a name should be"),
        ("JOINT Thumb", "ROOT Thumb", "line 15: 'ROOT' cannot stand here"),
        ("}\nMOTION", "MOTION", "line 24: 'MOTION' cannot stand here"),
        ("Frames: 3", "Frames: 4", "line 27: 4 frames are announced, and there are 3 lines"),
        ("Frames: 3", "Frames: 2", "2 frames are announced, and there are 3"),
        ("Frames: 3", "Frames: 4000000000", "line 26: 4e\\+09 where a whole number"),
        ("Frame Time: 0.01", "Frame Time: 0", "line 27: a frame lasts 0.0 s"),
        ("Frame Time: 0.01", "Frame Time: 0.01 5", "frames are announced"),
        ("7 0 0  90", "7 0 90", "line 29: 9 numbers for 10 channels"),
        ("30 40 50", "30 4o 50", "line 30: could not convert string to float: '4o'"),
        ("30 40 50", "30 inf 50", "line 30: a number is not finite"),
        (ARM[400:], "", "the file ends too early"),
        (ARM, "", "line 1: the file ends too early"),
    ],
)
def test_errors_name_the_line(old, new, message):
    assert old in ARM
    with pytest.raises(ValueError, match=message) as error:
        parse_bvh(ARM.replace(old, new).encode(), "arm.bvh")
    assert str(error.value).startswith("arm.bvh, line")


def test_folder_and_zip(tmp_path):
    (tmp_path / "clips" / "deep").mkdir(parents=True)
    (tmp_path / "clips" / "b_02.bvh").write_text(ARM)
    (tmp_path / "clips" / "deep" / "a_01.bvh").write_text(ARM)
    (tmp_path / "clips" / "readme.txt").write_text("no motion")
    with zipfile.ZipFile(tmp_path / "clips.zip", "w") as archive:
        archive.writestr("x/a_01.bvh", ARM)
        archive.writestr("b_02.bvh", ARM)
        archive.writestr("readme.txt", "no motion")
    assert [name for name, _ in read_bvh_folder(tmp_path / "clips")] == ["a_01", "b_02"]
    assert [name for name, _ in read_bvh_folder(tmp_path / "clips.zip")] == ["a_01", "b_02"]
    assert [name for name, _ in read_bvh_folder(tmp_path / "clips.zip", ["b_02"])] == ["b_02"]
    assert list_bvh(tmp_path / "clips.zip") == {"a_01": "x/a_01.bvh", "b_02": "b_02.bvh"}
    with pytest.raises(ValueError, match=r"holds no file c_03\.bvh"):
        list(read_bvh_folder(tmp_path / "clips.zip", ["c_03"]))
    np.testing.assert_array_equal(
        read_bvh(tmp_path / "clips" / "b_02.bvh").frames, parse_bvh(ARM.encode()).frames
    )

    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty holds 0 files"):
        list(read_bvh_folder(tmp_path / "empty"))
    with pytest.raises(FileNotFoundError, match=r"motions: .* no folder or zip .*; give one of BVH files"):
        list(read_bvh_folder(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="not a folder or a whole zip"):
        list(read_bvh_folder(tmp_path / "clips" / "readme.txt"))
    (tmp_path / "clips" / "c.bvh").write_text(ARM.replace("OFFSET 10", "OFFSET ten"))
    with pytest.raises(ValueError, match=r"c\.bvh, line 8: 'ten'"):
        list(read_bvh_folder(tmp_path / "clips"))
    broken = (tmp_path / "clips.zip").read_bytes().replace(b"OFFSET 10 0 0", b"OFFSET 20 0 0")
    (tmp_path / "broken.zip").write_bytes(broken)
    with pytest.raises(ValueError, match="whole zip of BVH files: Bad CRC"):
        list(read_bvh_folder(tmp_path / "broken.zip"))


def test_broken_files_are_refused_or_read():
    draw = np.random.default_rng(0)
    good = ARM.encode()
    refused = 0
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(int(draw.integers(1, 4))):
            at, length = int(draw.integers(0, len(data))), int(draw.integers(1, 30))
            match int(draw.integers(0, 5)):
                case 0:
                    data[at] ^= 1 << int(draw.integers(0, 8))
                case 1:
                    del data[at : at + length]
                case 2:
                    data[at:at] = data[at : at + length]
                case 3:
                    data[at : at + length] = draw.bytes(length)
                case 4:
                    data[at:at] = draw.choice([b" 9e99 ", b" -1 ", b" { ", b" } ", b" 1_0 ", b"JOINT q "])
            if not data:
                break
        try:
            motion = parse_bvh(bytes(data))
            assert isinstance(motion, Motion)
            assert np.isfinite(motion.frames).all()
        except ValueError:
            refused += 1
    assert 1000 < refused < 2000


def skeleton(joints, frames):
    """A root that moves, so many joints that do not, and frames of one number."""
    text = "HIERARCHY\nROOT r\n{\nOFFSET 0 0 0\nCHANNELS 1 Xrotation\n"
    text += "".join(f"JOINT j{i}\n{{\nOFFSET 0 0 0\nCHANNELS 0\n}}\n" for i in range(joints))
    return text + f"}}\nMOTION\nFrames: {frames}\nFrame Time: 0.1\n" + "0\n" * frames


def test_bombs(tmp_path):
    """Many joints take no more than their share of time; and text that is packed has bounds."""
    (tmp_path / "joints").mkdir()
    (tmp_path / "joints/a.bvh").write_text(skeleton(50_000, 1))
    (tmp_path / "poses").mkdir()
    (tmp_path / "poses/a.bvh").write_text(skeleton(5_000, 50_000))
    for kind, size in ((zipfile.ZIP_DEFLATED, 140), (zipfile.ZIP_LZMA, 100), (zipfile.ZIP_BZIP2, 1)):
        with zipfile.ZipFile(tmp_path / f"{kind}.zip", "w", kind) as archive:
            archive.writestr("a.bvh", b"\n" * (size << 20))
    with zipfile.ZipFile(tmp_path / "lines.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.bvh", skeleton(1, 1) + "00\n" * (40 << 20))
    (tmp_path / "pipe").mkdir()
    os.mkfifo(tmp_path / "pipe/a.bvh")
    names = ("joints", "poses", "8.zip", "14.zip", "12.zip", "pipe", "lines.zip")
    said = outcomes("bvh", *(tmp_path / name for name in names))
    assert said[0] == "done: [50001]"
    assert "50000 frames of 5001 joints are too many to be held" in said[1]
    assert "8.zip: a.bvh has more than 134217728 bytes" in said[2]
    assert "14.zip: a.bvh has more than" in said[3]
    assert "12.zip: a.bvh is compressed with bzip2" in said[4]
    assert "a.bvh is not a file" in said[5]
    assert "lines.zip: a.bvh has more than 1,048,576 lines" in said[6]
    assert [text.partition(":")[0] for text in said] == ["done"] + ["refused"] * 6


@pytest.fixture(scope="module")
def cmu():
    with zipfile.ZipFile(CMU) as archive:
        names = [name for name in archive.namelist() if name.startswith(("02_01", "13_30", "49_05"))]
        return {name[:-4]: parse_bvh(archive.read(name), name) for name in names}


@needs_cmu
def test_cmu_clips(cmu):
    assert len(zipfile.ZipFile(CMU).namelist()) == 117
    for motion in cmu.values():
        assert len([name for name in motion.names if not name.endswith(".end")]) == 31
        assert motion.frame_time_s == pytest.approx(1 / 120, rel=1e-4)
        position = motion.positions()
        # Bones keep their length, whatever the angles.
        for joint, parent in enumerate(motion.parents):
            if parent >= 0:
                bone = np.linalg.norm(position[:, joint] - position[:, parent], axis=1)
                np.testing.assert_allclose(bone, np.linalg.norm(motion.offsets[joint]), rtol=1e-9)
        # y is up: in the first frame, a T pose, the arms are wide, and the head is over the feet.
        pose = {
            name: position[0, motion.index(name)] for name in ("Head", "LeftFoot", "LeftHand", "RightHand")
        }
        assert pose["Head"][1] - pose["LeftFoot"][1] > 20
        assert pose["LeftHand"][0] - pose["RightHand"][0] > 20
        # A unit is 1 / 0.45 inch: then people are as high as people, less the crown of the head.
        assert 1300 < np.median(np.ptp(position[1:, :, 1], axis=1)) * 25.4 / 0.45 < 1800
    walked = np.ptp(cmu["02_01"].positions()[1:, 0], axis=0) * 25.4 / 0.45
    assert walked[2] > 3000 > 300 > walked[0]


def test_a_joint_without_an_offset_may_move():
    """It is the same then whether its position adds to the offset or replaces it."""
    joint = "{{ OFFSET {} CHANNELS 3 Zposition Xposition Yposition JOINT b {{ OFFSET 1 2 3 CHANNELS 0 }} }}"
    text = "HIERARCHY ROOT r {{ OFFSET 5 0 0 CHANNELS 1 Zrotation JOINT a {} }}\nMOTION\n"
    text += "Frames: 1\nFrame Time: 1\n90 3 1 2"
    motion = parse_bvh(text.format(joint.format("0 0 0")).encode())
    np.testing.assert_allclose(motion.positions()[0], [[5, 0, 0], [3, 1, 3], [1, 2, 6]], atol=1e-12)
    with pytest.raises(ValueError, match="joint 'a' has a position that changes, and an offset"):
        parse_bvh(text.format(joint.format("0 0 1")).encode())
