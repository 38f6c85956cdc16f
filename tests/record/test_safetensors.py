"""safetensors: what we write the library and PyTorch read, and the other way round; damage and odd arrays."""
from __future__ import annotations

import json
import os
import sys

import ml_dtypes
import numpy as np
import pytest

from ruda_record import RecorderError, layout, read_safetensors, write_safetensors

from ._helpers import assert_same

library = pytest.importorskip("safetensors.numpy")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def arrays() -> dict[str, np.ndarray]:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    return {
        "x": x, "transposed": x.T, "fortran": np.asfortranarray(x[0]), "strided": x[:, ::2, ::-1], "0-d": x[1, 2, 3, ...],
        "empty": x[:, :0], "broadcast": np.broadcast_to(np.float64(3), (2, 2)), "big endian": np.arange(3, dtype=">i2"),
        "bf16": np.arange(7, dtype=BFLOAT16)[::2], "é/\"\n": np.array([True, False, True]), "nan": np.array([np.nan, -0.0]),
    }  # fmt: skip


def plain(array: np.ndarray) -> np.ndarray:
    return np.array(array.astype(array.dtype.newbyteorder("=")), order="C")


def test_any_strides_and_shapes_come_back_in_order_of_the_names(tmp_path):
    given = arrays()
    path = write_safetensors(tmp_path / "new" / "model.v2", given, {"step": "100"})
    assert path.name == "model.v2.safetensors"
    got = read_safetensors(tmp_path / "new" / "model.v2")
    assert_same(got, {name: plain(given[name]) for name in sorted(given)})
    assert all(array.flags.writeable and array.flags.c_contiguous for array in got.values())


@pytest.mark.parametrize("dtype", list(layout.DTYPES.values()), ids=str)
def test_every_dtype(dtype, tmp_path):
    bits = np.random.default_rng(0).integers(0, 256, 5 * dtype.itemsize, np.uint8)
    x = ((bits & 1) if dtype == np.bool_ else bits).view(dtype)
    path = write_safetensors(tmp_path / "a", {"x": x})
    assert_same(read_safetensors(path), {"x": x})
    assert_same(library.load_file(path), {"x": x})


def test_the_library_reads_ours_and_we_read_the_librarys(tmp_path):
    given = {name: plain(array) for name, array in arrays().items()}
    ours = write_safetensors(tmp_path / "ours", given, {"step": "100"})
    got = library.load_file(ours)
    assert_same({name: got[name] for name in given}, given)
    from safetensors import safe_open

    with safe_open(ours, framework="numpy") as file:
        assert file.metadata() == {"step": "100"}
    library.save_file(given, tmp_path / "theirs.safetensors")
    assert_same(read_safetensors(tmp_path / "theirs"), {name: given[name] for name in sorted(given)})


def test_the_bytes_are_those_of_the_specification(tmp_path):
    """An eight-byte length, JSON padded to a multiple of eight, and the bytes, larger items first, without holes."""
    path = write_safetensors(tmp_path / "a", {"b": np.array([1], np.int8), "w": np.arange(6, dtype=np.int16).reshape(2, 3).T})
    blob = path.read_bytes()
    length = int.from_bytes(blob[:8], "little")
    assert length % 8 == 0 and json.loads(blob[8 : 8 + length]) == {
        "w": {"dtype": "I16", "shape": [3, 2], "data_offsets": [0, 12]},
        "b": {"dtype": "I8", "shape": [1], "data_offsets": [12, 13]},
    }
    assert blob[8 + length :] == np.array([0, 3, 1, 4, 2, 5], "<i2").tobytes() + b"\x01"


def test_torch_reads_ours_and_we_read_torchs(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    state = {"w": x, "half": x.to(torch.bfloat16), "scalar": torch.tensor(3, dtype=torch.int64)}
    save_file(state, tmp_path / "torch.safetensors")
    got = read_safetensors(tmp_path / "torch")
    assert got["half"].dtype == BFLOAT16 and got["scalar"].shape == ()
    again = load_file(write_safetensors(tmp_path / "ours", got))
    assert set(again) == set(got) and all(torch.equal(again[name], state[name]) for name in state)


@pytest.mark.parametrize(
    ("given", "metadata", "message"),
    [
        ({"a": [1]}, None, r"'a' is a list, not a NumPy array; write np.asarray\(x\)"),
        ({1: np.zeros(1)}, None, "1 cannot be the name of an array"),
        ({"__metadata__": np.zeros(1)}, None, "cannot be the name"),
        ({"a": np.zeros(1, complex)}, None, "arrays are of dtype bool.*not complex128"),
        ({"a": np.zeros(1)}, {"step": 1}, r"metadata is text by name, not 'step': 1; write str\(value\)"),
    ],
)
def test_what_it_cannot_hold_is_refused_before_anything_is_written(given, metadata, message, tmp_path):
    with pytest.raises(RecorderError, match=rf"a\.safetensors: .*{message}"):
        write_safetensors(tmp_path / "new" / "a", given, metadata)
    assert not list(tmp_path.iterdir())


def test_damaged_and_missing_files_are_recorder_errors(tmp_path):
    good = write_safetensors(tmp_path / "a", arrays()).read_bytes()
    bad, rng = tmp_path / "bad.safetensors", np.random.default_rng(0)
    length = 8 + int.from_bytes(good[:8], "little")
    blobs = [good[:cut] for cut in range(0, len(good), 29)] + [good + b"x", b"", b"\xff" * 100, b"text" * 9]
    for _ in range(300):
        mutated = bytearray(good)
        mutated[int(rng.integers(length))] ^= int(rng.integers(1, 256))
        blobs.append(bytes(mutated))
    refused = 0
    for blob in blobs:
        bad.write_bytes(blob)
        try:
            read_safetensors(bad)
        except RecorderError as error:
            refused += 1
            assert str(error).startswith(f"{bad}: ")
    assert refused > 0.6 * len(blobs)  # the format has no checksum: a letter of a name may be another
    with pytest.raises(RecorderError, match=r"missing\.safetensors: not found"):
        read_safetensors(tmp_path / "missing")
    (tmp_path / "folder.safetensors").mkdir()
    for use in (read_safetensors, lambda path: write_safetensors(path, {})):
        with pytest.raises(RecorderError, match="is a folder"):
            use(tmp_path / "folder")


def test_a_dtype_that_numpy_lacks_is_named(tmp_path):
    header = json.dumps({"w": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(RecorderError, match="'w' has "):
        read_safetensors(tmp_path / "a")


def test_the_old_file_survives_a_failure(tmp_path, monkeypatch):
    path = write_safetensors(tmp_path / "a", {"x": np.zeros(9)})
    before = path.read_bytes()

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RecorderError, match=r"a\.safetensors: No space left on device"):
        write_safetensors(path, {"x": np.ones(9)})
    monkeypatch.undo()
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_without_the_package_reading_says_what_to_install_and_writing_works(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    path = write_safetensors(tmp_path / "a", {"x": np.zeros(3)})
    with pytest.raises(ImportError, match=r"pip install 'ruda\[safetensors\]'"):
        read_safetensors(path)
