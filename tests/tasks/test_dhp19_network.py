"""The network of DHP19's makers, against what Keras defines, computed with NumPy in float64."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from ppln.events.io import RecordingError
from ppln.models.keras import LAYERS, load_dhp19
from ppln.tasks.dhp19_network import read_dhp19_network

REAL = Path(__file__).parents[2] / "../shared/data/dhp19_network/DHP_CNN.model"
CHANNELS = dict(zip(LAYERS, [1, 16, 32, 32, 32, 64, 64, 64, 64, 32, 32, 32, 32, 32, 16, 16, 16], strict=True))
OUTPUTS = [*list(CHANNELS.values())[1:], 13]


def made_kernels():
    random = np.random.default_rng(0)
    kernels = {}
    for (name, inputs), outputs in zip(CHANNELS.items(), OUTPUTS, strict=True):
        shape = (3, 3, outputs, inputs) if name.endswith("up") else (3, 3, inputs, outputs)
        kernels[name] = random.normal(size=shape).astype(np.float32) * np.float32(0.4 / inputs**0.5)
    return kernels


def convolved(x, kernel, dilation):
    """Keras's Conv2D, padding "same", stride 1. x [H, W, in]"""
    height, width = x.shape[:2]
    wide = np.pad(x, ((dilation, dilation), (dilation, dilation), (0, 0)))
    out = np.zeros((height, width, kernel.shape[3]))
    for i in range(3):
        for j in range(3):
            rows, columns = i * dilation, j * dilation
            out += wide[rows : rows + height, columns : columns + width] @ kernel[i, j]
    return out


def enlarged(x, kernel):
    """Keras's Conv2DTranspose, padding "same", stride 2: input i goes to 2 i + k; the last ones are cut."""
    height, width = x.shape[:2]
    out = np.zeros((2 * height + 1, 2 * width + 1, kernel.shape[2]))
    for i in range(3):
        for j in range(3):
            out[i : i + 2 * height : 2, j : j + 2 * width : 2] += x @ kernel[i, j].T
    return out[:-1, :-1]


def by_definition(x, kernels):
    """x [H, W] of 0 to 1 -> [13, H, W]"""
    y = 255 * x.astype(np.float64)[..., None]
    for name, kernel in kernels.items():
        kernel = kernel.astype(np.float64)
        if name.endswith("up"):
            y = enlarged(y, kernel)
        else:
            y = convolved(y, kernel, 2 if name[:5] in ("conv3", "conv4") else 1)
        y = np.maximum(y, 0)
        if name in ("conv1", "conv2d"):
            y = y.reshape(y.shape[0] // 2, 2, y.shape[1] // 2, 2, -1).max((1, 3))
    return y.transpose(2, 0, 1)


def test_it_computes_what_keras_defines():
    kernels = made_kernels()
    x = np.random.default_rng(1).random((24, 36)).astype(np.float32)
    network = load_dhp19(kernels)
    assert not network.training
    found = network(torch.from_numpy(x)[None, None], 0.3)[0].detach().numpy()
    expected = by_definition(x, kernels)
    assert expected.shape == (13, 24, 36)
    assert (expected > 0).mean() > 0.2
    np.testing.assert_allclose(found, expected, atol=1e-5 * expected.max())
    assert network(torch.from_numpy(x)[None, None], torch.tensor([[0.0, 1.0]])).shape == (1, 2, 13, 24, 36)


def test_wrong_kernels():
    kernels = made_kernels()
    with pytest.raises(ValueError, match="kernels: 'pose-calabrese' needs conv4_up"):
        load_dhp19({name: kernel for name, kernel in kernels.items() if name != "conv4_up"})
    with pytest.raises(ValueError, match=r"kernels: conv3_up must be \[3, 3, 32, 64\], got \[3, 3, 64, 32\]"):
        load_dhp19(kernels | {"conv3_up": kernels["conv3_up"].swapaxes(2, 3)})


def test_a_file(tmp_path):
    kernels = made_kernels()
    path = tmp_path / "made.model"
    with h5py.File(path, "w") as file:
        for name, kernel in kernels.items():
            file[f"model_weights/{name}/{name}/kernel:0"] = kernel
    network = read_dhp19_network(path)
    for one, same in zip(network.parameters(), load_dhp19(kernels).parameters(), strict=True):
        assert torch.equal(one, same)
    with h5py.File(path, "a") as file:
        del file["model_weights/conv5a"]
    with pytest.raises(RecordingError, match="has no dataset model_weights/conv5a/conv5a/kernel:0"):
        read_dhp19_network(path)
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(RecordingError, match="damaged or cut short"):
        read_dhp19_network(path)


@pytest.mark.skipif(not REAL.exists(), reason="the network of DHP19's makers is not there")
def test_the_real_file():
    network = read_dhp19_network(REAL)
    assert sum(p.numel() for p in network.parameters()) == 218_592
    with h5py.File(REAL) as file:
        kernels = {name: file[f"model_weights/{name}/{name}/kernel:0"][()] for name in LAYERS}
    x = np.random.default_rng(2).random((24, 36)).astype(np.float32) ** 8
    expected = by_definition(x, kernels)
    found = network(torch.from_numpy(x)[None, None], 0)[0].detach().numpy()
    assert expected.max() > 0.01
    np.testing.assert_allclose(found, expected, atol=1e-5 * expected.max())
