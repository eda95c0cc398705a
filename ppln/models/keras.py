"""The network that the makers of DHP19 trained on their recordings, which they published as a file of Keras.

It is PoseCalabrese but for its transposed convolutions. Keras's keep outputs 2 i + k of input i and weight k,
from the first on, torch's with a padding of 1 keep 2 i + k - 1: what Keras computes is what torch computes of
the mirrored picture with mirrored weights, mirrored back. So all weights are mirrored here, and each picture.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ppln.models.networks import check_shapes, fitting, shapes, without_memory
from ppln.models.pose import PoseCalabrese

_PEAK = 255  # of what it was trained on
# In the order of the network; "up" are transposed convolutions.
LAYERS = (
    *("conv1", "conv2a", "conv2b", "conv2d", "conv3a", "conv3b", "conv3c", "conv3d", "conv3_up"),
    *("conv4a", "conv4b", "conv4c", "conv4d", "conv4_up", "conv5a", "conv5d", "pred_cube"),
)


class PoseDHP19(PoseCalabrese):
    """As PoseCalabrese: x [B, 1, H, W] of 0 to 1. Joints are where Vicon's markers are, in DHP19's order."""

    def forward(self, x: Tensor, t: Tensor | float) -> Tensor:
        return super().forward(_PEAK * x.flip(-2, -1), t).flip(-2, -1)


def load_dhp19(kernels: Mapping[str, NDArray[np.floating]]) -> PoseDHP19:
    """The network of Keras's kernels by layer, in eval mode.

    kernels: [3, 3, in, out] each, of a transposed convolution [3, 3, out, in]; see LAYERS.
    """
    name = "pose-calabrese"
    own = shapes(without_memory(name, {}))
    # Either kind lies the other way round in torch: [out, in, 3, 3], and [in, out, 3, 3].
    expected = {layer: (*shape[2:], *shape[1::-1]) for layer, shape in zip(LAYERS, own.values(), strict=True)}
    given = {layer: torch.from_numpy(np.asarray(kernel)) for layer, kernel in kernels.items()}
    check_shapes("kernels", name, expected, given)
    mirrored = (given[layer].permute(3, 2, 0, 1).flip(-2, -1) for layer in LAYERS)
    values = dict(zip(own, mirrored, strict=True))
    with torch.device("meta"):
        model = PoseDHP19()
    model.load_state_dict(fitting(name, {}, values), assign=True)
    return model.eval()
