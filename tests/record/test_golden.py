"""Version 1 is frozen: its golden file is written byte for byte as it was, and loads for ever."""
from __future__ import annotations

import hashlib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ruda_record import BinBytesRecorder, BinFileRecorder, NamedMpkFileRecorder, PrettyJsonFileRecorder

from ._helpers import assert_same

GOLDEN = Path(__file__).parent / "data" / "version-1.bin"
SHA256 = "01a3e912ad2b664f7db4c5689944c97a072346edf4aa51f36941351ee4808ebc"
DATA = {
    "model": {
        "weight": np.array([[1.0, -0.0, np.inf], [5e-324, -1.5, 0.1]]),
        "layers": [{"bias": np.array([1, 2, 3], ml_dtypes.bfloat16)}, {"bias": np.array([0.5], np.float16)}],
        "scale": np.array(0.25, np.float32),
        "empty": np.zeros((0, 3), np.int64),
    },
    "integers": [
        np.array([-(2 ** (bits - 1)), 2 ** (bits - 1) - 1], f"int{bits}") for bits in (8, 16, 32, 64)
    ] + [np.array([0, 2**bits - 1], f"uint{bits}") for bits in (8, 16, 32, 64)],
    "mask": np.array([[True, False], [False, True]]).T,
    "state": (3, -1, 2**63, 2**64, -(2**100), 0.1, True, None, "é/~", b"\0\xff", np.float32(0.1), ()),
    "": [],
    "a/b~c": {},
}  # fmt: skip


TREES = {
    NamedMpkFileRecorder: "9e05716689c8471c046bbdff49fd88609d538f6ae96610a01863412542092b0a",
    PrettyJsonFileRecorder: "fa681bc83f32e59f5bbae5c72ae4247e7264362f9d774b31bf0dd410224d57c7",
}


def test_the_golden_file_loads():
    assert hashlib.sha256(GOLDEN.read_bytes()).hexdigest() == SHA256
    assert_same(BinFileRecorder().load(GOLDEN), DATA)
    assert_same(BinFileRecorder().load(GOLDEN, lazy=True), DATA)


def test_its_bytes_are_written_again():
    assert BinBytesRecorder().save(DATA) == GOLDEN.read_bytes()


@pytest.mark.parametrize("kind", TREES, ids=lambda kind: kind.suffix)
def test_the_golden_trees_load_and_are_written_again(kind, tmp_path):
    golden = GOLDEN.with_suffix(kind.suffix)
    assert hashlib.sha256(golden.read_bytes()).hexdigest() == TREES[kind]
    assert_same(kind().load(golden), DATA)
    assert kind().save(DATA, tmp_path / "a").read_bytes() == golden.read_bytes()
