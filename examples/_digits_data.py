"""The UCI handwritten digits: 1797 images of 8 x 8 pixels in 17 levels of grey (Alpaydin and Kaynak 1998).

scikit-learn carries them, so nothing is downloaded.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn import datasets

import ruda_tensor as rt

SIDE, PIXELS, CLASSES, TRAIN = 8, 64, 10, 1440


@dataclass(frozen=True)
class Digits:
    """Images [n, 10, 10] in [0, 1] with a blank border of one pixel, and classes [n]; the split never changes."""

    train_images: rt.Tensor
    train_classes: rt.Tensor
    test_images: rt.Tensor
    test_classes: rt.Tensor


def load_digits(device: rt.Device) -> Digits:
    """Read the digits and put them on `device`: 1440 to train on, 357 to test with."""
    data: Any = datasets.load_digits()
    images = np.pad(data.images.astype(np.float32) / 16.0, ((0, 0), (1, 1), (1, 1)))
    classes = data.target.astype(np.int64)
    order = rt.random.permutation(len(images), seed=1998, device=rt.Cpu()).numpy()  # not the run's seed
    train, test = order[:TRAIN], order[TRAIN:]
    parts = (images[train], classes[train], images[test], classes[test])
    return Digits(*[rt.tensor(part, device=device) for part in parts])


def crop(images: rt.Tensor, corners: rt.Tensor) -> rt.Tensor:
    """Cut 8 x 8 pixels out of each image, from its own corner (row, column) on: [n, 10, 10], [n, 2] -> [n, 64].

    The corner (1, 1) gives the image as it is; the others, 0 to 2 each way, move it by a pixel.
    """
    n, device = images.shape[0], images.device
    side = rt.arange(SIDE, device=device)
    which = rt.arange(n, device=device)[:, None, None]
    rows, columns = corners[:, 0:1] + side, corners[:, 1:2] + side
    return images[which, rows[:, :, None], columns[:, None, :]].reshape((n, PIXELS))


def moved(images: rt.Tensor) -> rt.Tensor:
    """Each image moved by up to one pixel, at random: what keeps a small network from learning places by heart."""
    return crop(images, rt.random.integers((images.shape[0], 2), low=0, high=3, device=images.device))


def centred(images: rt.Tensor) -> rt.Tensor:
    """Each image as it is."""
    return images[:, 1:-1, 1:-1].reshape((images.shape[0], PIXELS))
