"""HDF5 as the tools of DDD20 write it: datasets that grow, and end in rows that were never written."""

import h5py
import numpy as np

ROOM = 2048  # rows by which a dataset grows


def grown(file, name: str, values: np.ndarray, block: int, **options) -> None:
    """As the tools of DDD20 write: room for many rows at a time, of which whole blocks are written."""
    shape = (-(-max(1, len(values)) // ROOM) * ROOM, *values.shape[1:])
    more = {"maxshape": (None, *shape[1:]), "chunks": (block, *shape[1:]), **options}
    data = file.create_dataset(name, shape, values.dtype, **more)
    full = -(-len(values) // block) * block
    data[:full] = np.concatenate([values, np.zeros((full - len(values), *shape[1:]), values.dtype)])


def packed_rows(file, packets: list[bytes], received: np.ndarray, **options) -> None:
    """dvs/data and dvs/timestamp: packets of the camera, and when each was received."""
    grown(file, "dvs/timestamp", np.asarray(received, np.int64), 128)
    more = {"maxshape": (None, 3), "chunks": (128, 3), **options}
    shape = (len(file["dvs/timestamp"]), 3)
    data = file.create_dataset("dvs/data", shape, h5py.vlen_dtype(np.uint8), **more)
    for row, (packet, time) in enumerate(zip(packets, received, strict=True)):
        for column, content in enumerate((str(time).encode(), packet[:28], packet[28:])):
            data[row, column] = np.frombuffer(content, np.uint8)


def measured(file, name: str, times: np.ndarray, values: np.ndarray) -> None:
    """A measurement of the car: its time and value, and when it was received."""
    grown(file, f"{name}/timestamp", np.asarray(times, np.int64), 128)
    grown(file, f"{name}/data", np.stack([times, values], 1).astype(float), 128)
