"""What frames a camera takes of light that is known."""

import pytest
import torch

from ppln.datasets.draws import Draws
from ppln.datasets.synthetic.scenes.frames import EXPOSURE, LONG, Davis, draw_davis, drawings_after, take

FRAMES, SUBSTEPS = 5, 8
LAST = (FRAMES - 1) * SUBSTEPS


def ramp(after: int = 0) -> torch.Tensor:
    """Light [1, S, 1, 1] that grows by 0.1 from frame to frame."""
    return (torch.arange(LAST + after + 1) / SUBSTEPS * 0.1).reshape(1, -1, 1, 1)


def davis(exposure=0.0, black=0.0, white=1.0, long=0.0, pattern=0.0) -> Davis:
    return Davis(*(torch.tensor(v).reshape(1, 1, 1, 1) for v in (exposure, black, white, long, pattern)))


def test_ideal_frames_are_the_light_and_saturate():
    sharp, blurry = take(4 * ramp(), FRAMES, SUBSTEPS, None)
    assert sharp.flatten().tolist() == pytest.approx([0, 0.4, 0.8, 1, 1])
    assert blurry.item() == pytest.approx(3.2 / 5)


@pytest.mark.parametrize("exposure", [0.01, 0.1, 0.25, 0.3, 0.4, 0.5, 0.7, 0.75])
def test_what_blurs_is_the_mean_light_from_each_stamp_on(exposure):
    sharp, blurry = take(ramp(drawings_after(SUBSTEPS)), FRAMES, SUBSTEPS, davis(exposure))
    # Of light that grows evenly, that is the light in the middle of the exposure.
    wanted = torch.arange(FRAMES) * 0.1 + 0.1 * exposure / 2
    assert blurry.item() == pytest.approx(wanted.mean().item())
    # The sharp frames are taken there, at the nearest drawing.
    drawing = round(exposure * SUBSTEPS / 2) / SUBSTEPS
    torch.testing.assert_close(sharp.flatten(), torch.arange(FRAMES) * 0.1 + 0.1 * drawing)


def test_sharp_frames_are_not_blurred_by_their_own_exposure():
    flash = torch.zeros(1, LAST + drawings_after(SUBSTEPS) + 1, 1, 1)
    flash[:, SUBSTEPS + 2] = 1  # in the middle of the second frame's exposure
    sharp, blurry = take(flash, FRAMES, SUBSTEPS, davis(0.5))
    assert sharp.flatten().tolist() == [0, 1, 0, 0, 0]
    assert blurry.item() == pytest.approx(1 / 4 / FRAMES)  # a quarter of an exposure


def test_a_frame_without_exposure_is_the_light_itself():
    sharp, _ = take(ramp(drawings_after(SUBSTEPS)), FRAMES, SUBSTEPS, davis())
    assert sharp.flatten().tolist() == pytest.approx([0, 0.1, 0.2, 0.3, 0.4], rel=1e-6, abs=1e-9)


def test_levels_and_pattern():
    sharp, _ = take(
        ramp(drawings_after(SUBSTEPS)), FRAMES, SUBSTEPS, davis(black=0.1, white=0.25, pattern=0.01)
    )
    assert sharp.flatten().tolist() == pytest.approx([0, 0.01, 0.11, 0.21, 0.25])


def test_something_is_left_of_a_dark_scene():
    light = 0.02 * ramp(drawings_after(SUBSTEPS))
    sharp, _ = take(light, FRAMES, SUBSTEPS, davis(black=0.05))
    torch.testing.assert_close(sharp.amax(), light[:, LAST].max() - light.mean() / 2)


def test_a_long_exposure_integrates_before_it_saturates():
    light = ramp(drawings_after(SUBSTEPS))
    sharp, blurry = take(light, FRAMES, SUBSTEPS, davis(white=0.25, long=1.0))
    assert sharp.max().item() == 0.25
    assert blurry.item() == pytest.approx(0.2)  # the mean of 0 to 0.4
    assert take(light, FRAMES, SUBSTEPS, davis(white=0.25))[1].item() == pytest.approx(0.8 / 5)


def test_what_is_drawn():
    drawn = draw_davis(Draws(0, torch.arange(2000)), (4, 6))
    assert drawn.pattern.shape == (2000, 1, 4, 6)
    long = drawn.long.flatten() > 0
    assert long.float().mean().item() == pytest.approx(LONG, abs=0.04)
    assert drawn.exposure.flatten()[long].max() == 0
    assert 0.95 * EXPOSURE < drawn.exposure.max() <= EXPOSURE
    assert 0.4 <= drawn.white.min() < 0.45
    assert drawn.white.max() == 1
    assert drawn.black.min() == 0
    assert 0.07 < drawn.black.max() <= 0.08
    assert drawn.pattern.std(0).mean() < 0.008
