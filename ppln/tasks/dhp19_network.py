"""The network that the makers of DHP19 trained, read from their file, DHP_CNN.model (HDF5, of Keras)."""

from pathlib import Path

from ppln.events.io import hdf5
from ppln.models.keras import LAYERS, PoseDHP19, load_dhp19


def read_dhp19_network(path: Path | str) -> PoseDHP19:
    """Their network with their weights, in eval mode, to be called as PoseCalabrese is."""
    with hdf5.opened(Path(path)) as file:
        names = {layer: f"model_weights/{layer}/{layer}/kernel:0" for layer in LAYERS}
        return load_dhp19({layer: hdf5.dataset(file, name, 4, "f").whole() for layer, name in names.items()})
