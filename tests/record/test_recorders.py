"""What holds for the recorders of all files: the data come back, files appear whole, damage is seen, bombs do not burst."""
from __future__ import annotations

import errno
import gzip
import io
import json
import os
import struct
import time
import tracemalloc
import zlib

import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import given, settings

import ruda_record
from ruda_record import (
    BinBytesRecorder,
    BinFileRecorder,
    BinGzFileRecorder,
    CompactRecorder,
    DebugRecordSettings,
    DefaultRecorder,
    DoublePrecisionSettings,
    FullPrecisionSettings,
    HalfPrecisionSettings,
    JsonGzFileRecorder,
    NamedMpkFileRecorder,
    NamedMpkGzFileRecorder,
    NoStdInferenceRecorder,
    NoStdTrainingRecorder,
    PrettyJsonFileRecorder,
    RecorderError,
    SensitiveCompactRecorder,
    gzipped,
    layout,
)
from ruda_record.encode import Encoder

from ._helpers import assert_same, read
from .test_golden import DATA as GOLDEN
from .test_round_trip import plain_data

KINDS = [BinFileRecorder, BinGzFileRecorder, NamedMpkFileRecorder, NamedMpkGzFileRecorder, PrettyJsonFileRecorder,
         JsonGzFileRecorder]  # fmt: skip
SUFFIXES = [".bin", ".bin.gz", ".mpk", ".mpk.gz", ".json", ".json.gz"]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DATA = {
    **GOLDEN,
    "@": {"@": {"x": ["@", {"@": 1, "a": ()}]}},
    "floats": [float("inf"), -float("inf"), float("nan"), -0.0, 5e-324, 0.1, 1e22, 1.0],
    "scalars": [np.float32("nan"), np.float64(-0.0), np.int8(-3), np.bool_(True), BFLOAT16.type(0.1)],
    "nan": np.array([0x7FC00000, 0x7FA00001, 0xFFC12345, 0x80000001, 0xFF800000], np.uint32).view(np.float32),
    "big": 10**400,
}


def in_memory(kind, data, options=FullPrecisionSettings) -> bytes:
    file = io.BytesIO()
    kind(options)._write(file, Encoder(data, kind(options).settings))
    return file.getvalue()


kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.suffix)
others = pytest.mark.parametrize("kind", KINDS[1:], ids=lambda kind: kind.suffix)


@kinds
def test_everything_comes_back(kind, tmp_path):
    path = kind().save(DATA, tmp_path / "a")
    assert path.name == "a" + kind.suffix
    assert_same(kind().load(path), DATA)
    kind().verify(path)
    assert path.read_bytes() == in_memory(kind, DATA)  # equal data are equal bytes: no time and no name is in them


@kinds
@settings(max_examples=30)
@given(plain_data())
def test_any_plain_data_come_back(kind, data):
    assert_same(read(kind, in_memory(kind, data)), data)


@others
@pytest.mark.parametrize("dtype", list(layout.DTYPES.values()), ids=str)
def test_CKPT_07_every_dtype_shape_and_stride(kind, dtype):
    bits = np.random.default_rng(0).integers(0, 256, 24 * dtype.itemsize, np.uint8)
    x = ((bits & 1) if dtype == np.bool_ else bits).view(dtype).reshape(2, 3, 4)
    cases = [x, x.T, x[:, ::-1, ::2], np.asfortranarray(x[0]), x[1, 2, 3, ...], x[:0], x[:, :0], x[:1, 0, 0],
             np.broadcast_to(x[0, 0, 0], (3, 1, 5))]  # fmt: skip
    assert_same(read(kind, in_memory(kind, cases)), cases)


@others
def test_precision_settings_hold_for_every_kind(kind):
    data = {"w": np.array([1.0, 0.1]), "n": np.arange(3), "x": 0.1}
    got = read(kind, in_memory(kind, data, HalfPrecisionSettings))
    assert_same(got, {**data, "w": data["w"].astype(np.float16)})
    got = read(kind, in_memory(kind, {"w": np.ones(2, BFLOAT16)}, DoublePrecisionSettings))
    assert_same(got, {"w": np.ones(2)})
    with pytest.raises(RecorderError, match="'/w' has finite values beyond 65504"):
        in_memory(kind, {"w": np.array([1e9])}, HalfPrecisionSettings)


@pytest.mark.slow
@pytest.mark.parametrize("data", [
    list(range((1 << 18) - 5)), [np.zeros(0, np.int8)] * (1 << 16), ["x" * (4 << 20), b"x" * (4 << 20), "é" * (1 << 20)],
    [np.int8(1)] * 100_000,
], ids=["values", "arrays", "text", "scalars"])  # fmt: skip
@pytest.mark.parametrize("kind", [NamedMpkFileRecorder, PrettyJsonFileRecorder])
def test_what_is_at_the_limits_can_be_saved_and_loaded(kind, data):
    got = read(kind, in_memory(kind, data))
    assert len(got) == len(data)
    assert_same(got[-1], data[-1])


@others
def test_depth_is_limited(kind):
    data = 1
    for level in range(100):
        data = [[data], (data,), {"x": data}, {"@": data}][level % 4]
    assert_same(read(kind, in_memory(kind, data)), data)
    with pytest.raises(RecorderError, match="nested deeper than 100 levels"):
        in_memory(kind, [data])


@others
@pytest.mark.parametrize("given", ["step-100", "run.v2", "run.v0.1", "run.v0.2", "a.b/c", ".hidden", "x.", "x.bin", "..."])
def test_CKPT_11_a_suffix_is_appended_once_and_a_dot_is_part_of_the_name(kind, given, tmp_path):
    suffix = kind.suffix
    for path in (tmp_path / given, f"{tmp_path}/{given}{suffix}"):
        assert kind().path(path) == tmp_path / f"{given}{suffix}"
        assert kind().save(given, path).is_file() and kind().load(path) == given
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


@kinds
@pytest.mark.parametrize("step", ["replace", "fsync", "write", "permission", "folder"])
def test_CKPT_01_the_old_file_survives_a_failure_and_nothing_else_is_left(kind, step, tmp_path, monkeypatch):
    recorder = kind()
    path = recorder.save({"x": np.arange(1000)}, tmp_path / "a")
    before, reason = path.read_bytes(), "No space left on device"

    def fail(number):
        def failing(*args, **kwargs):
            raise OSError(number, os.strerror(number))

        return failing

    if step == "write":
        monkeypatch.setattr(kind, "_write", lambda self, file, encoded: (file.write(b"half"), fail(errno.ENOSPC)()))
    elif step == "permission":
        monkeypatch.setattr("ruda_record.files.os.open", fail(errno.EACCES))
        reason = "Permission denied"
    elif step == "folder":
        (tmp_path / f"b{kind.suffix}").mkdir()
        with pytest.raises(RecorderError, match="is a folder, so no record can be written there"):
            recorder.save(1, tmp_path / "b")
        (tmp_path / f"b{kind.suffix}").rmdir()
        return
    else:
        monkeypatch.setattr(os, step, fail(errno.ENOSPC))
    with pytest.raises(RecorderError) as raised:
        recorder.save({"x": np.zeros(2000)}, tmp_path / "a")
    assert str(raised.value) == f"{path}: {reason}"
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == [path.name] and path.read_bytes() == before


@others
def test_CKPT_02_any_truncation_and_any_addition_is_seen(kind):
    good = in_memory(kind, DATA)
    for length in (*range(0, len(good) - 1, 7), len(good) - 2):  # a JSON's last line end is not missed
        with pytest.raises(RecorderError):
            read(kind, good[:length])
    for more in (b"\0", b"x", good, bytes(300)):
        with pytest.raises(RecorderError, match="too long"):
            read(kind, good + more)


@others
def test_CKPT_02_mutations_are_refused_or_change_nothing(kind):
    """What no checksum covers is gzip's time and the space in JSON: the same data come back, or an error."""
    good, rng, refused = in_memory(kind, DATA), np.random.default_rng(4), 0
    for _ in range(500):
        mutated = bytearray(good)
        for _ in range(rng.integers(1, 4)):
            at, what = int(rng.integers(len(mutated))), rng.integers(5)
            if what == 0:
                mutated[at] ^= int(rng.integers(1, 256))
            elif what == 1:
                del mutated[at + 1 :]
            elif what == 2:
                mutated[at:at] = rng.bytes(int(rng.integers(1, 9)))
            elif what == 3:
                mutated[at : at + 4] = b"\xff\xff\xff\xff"
            else:
                mutated[at : at + 2] = b"99"
        started = time.process_time()
        try:
            assert_same(read(kind, bytes(mutated)), DATA)
        except RecorderError as error:
            refused += 1
            assert len(str(error)) < 500 and str(error).isprintable()
        assert time.process_time() - started < 1
    assert refused > 480


@pytest.mark.parametrize("kind", [BinGzFileRecorder, NamedMpkGzFileRecorder, JsonGzFileRecorder])
def test_a_gzip_file_of_another_program_loads(kind):
    plain = in_memory({".bin.gz": BinFileRecorder, ".mpk.gz": NamedMpkFileRecorder, ".json.gz": PrettyJsonFileRecorder}[
        kind.suffix], DATA)  # fmt: skip
    assert gzip.decompress(in_memory(kind, DATA)) == plain
    assert_same(read(kind, gzip.compress(plain, 9)), DATA)


@pytest.mark.parametrize("kind", KINDS[:4], ids=lambda kind: kind.suffix)
def test_saving_makes_no_second_copy_and_loading_only_one(kind, tmp_path):
    array = np.zeros((2048, 4096), np.float32).T
    tracemalloc.start()
    try:
        path = kind().save({"w": array, "half": array[:100]}, tmp_path / "a")
        saving = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        kind().load(path)
        loading = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert saving < 0.05 * array.nbytes and loading < 1.08 * array.nbytes, (saving, loading)


def _array_of(count: int) -> bytes:
    tree = {"@": "array", "dtype": "int8", "shape": [count], "data": 0}
    return msgpack.packb({"format": "ruda record", "version": 1, "precision": "full", "data": tree})


HEAD = b'{"format": "ruda record", "version": 1, "precision": "full", "data": '
PACKED_HEAD = _array_of(1)[: _array_of(1).index(b"\x84\xa1@")]
BOMBS = {  # what comes first, and what is then repeated until it is a gigabyte
    "zeros": (b"", b"\0"),
    "zeros behind a .bin": (in_memory(BinFileRecorder, DATA), b"\0"),
    "zeros behind a .mpk": (in_memory(NamedMpkFileRecorder, DATA), b"\0"),
    "zeros behind a .json": (in_memory(PrettyJsonFileRecorder, DATA), b"\0"),
    "zeros behind a beginning": (in_memory(BinFileRecorder, DATA)[:100], b"\0"),
    "space": (b"{", b" "),
    "a string": (b'{"', b"a"),
    "text in a record": (b'{"format": "ruda record", "version": 1, "precision": "', b"a"),
    "brackets": (HEAD, b"["),
    "values": (HEAD + b"[", b"0,"),
    "too many elements": (HEAD + b'{"@": "array", "dtype": "int8", "shape": [9], "values": [', b"0,"),
    "msgpack maps": (PACKED_HEAD, b"\x81\xa1a"),
    "msgpack values": (PACKED_HEAD + b"\xdd\xff\xff\xff\xff", b"\0"),
    "msgpack text": (PACKED_HEAD + b"\xdb\xff\xff\xff\xff", b"a"),
}


def bomb(first: bytes, unit: bytes) -> bytes:
    """The beginning of a gzip file of a gigabyte: one block of a megabyte, again and again."""
    whole = zlib.compressobj(1, zlib.DEFLATED, 31)
    begin = whole.compress(first) + whole.flush(zlib.Z_FULL_FLUSH)
    part = zlib.compressobj(1, zlib.DEFLATED, -15)
    return begin + (part.compress(unit * ((1 << 20) // len(unit))) + part.flush(zlib.Z_FULL_FLUSH)) * 1024


@pytest.mark.parametrize("kind", [BinGzFileRecorder, NamedMpkGzFileRecorder, JsonGzFileRecorder], ids=lambda k: k.suffix)
@pytest.mark.parametrize("name", BOMBS)
def test_a_gzip_bomb_costs_neither_time_nor_memory(name, kind, monkeypatch):
    blob = bomb(*BOMBS[name])
    assert len(zlib.decompressobj(31).decompress(blob, 1 << 22)) == 1 << 22  # a bomb it is
    started = time.process_time()
    with pytest.raises(RecorderError):
        read(kind, blob)
    assert time.process_time() - started < 2
    share = 16 if "values" in name else 1  # a sixteenth of the values, since each is slow to trace
    monkeypatch.setattr("ruda_record.tree.MAX_VALUES", layout.MAX_VALUES // share)
    tracemalloc.start()
    try:
        with pytest.raises(RecorderError):
            read(kind, blob)
        assert tracemalloc.get_traced_memory()[1] < 100e6 / share
    finally:
        tracemalloc.stop()


def test_a_gzip_stream_of_a_thousand_members_is_refused_at_the_second():
    blob = in_memory(NamedMpkGzFileRecorder, DATA)
    with pytest.raises(RecorderError, match="too long: something follows the gzip stream"):
        read(NamedMpkGzFileRecorder, blob + gzip.compress(b"") * 1000)
    with pytest.raises(RecorderError):
        read(NamedMpkGzFileRecorder, gzip.compress(b"") + blob)


def test_a_claim_beyond_the_file_is_refused_before_anything_is_made():
    tree = {"@": "array", "dtype": "float32", "shape": [2**40, 2**30]}
    head = {"format": "ruda record", "version": 1, "precision": "full"}
    huge = json.dumps({**head, "data": {**tree, "values": [1]}, "crc32": None}).encode()
    some = json.dumps({**head, "data": {**tree, "shape": [1 << 28], "values": [1]}, "crc32": None}).encode()
    for blob, message in ((huge, "is too large"), (some, "is the most that there can be")):
        for kind, packed_blob in ((PrettyJsonFileRecorder, blob), (JsonGzFileRecorder, gzip.compress(blob))):
            with pytest.raises(RecorderError, match=message):
                read(kind, packed_blob)
    claims = msgpack.packb({**head, "data": {**tree, "shape": [1 << 28], "data": 0}, "crc32": 0})
    at = claims.index(b"\xa4data\x00") + 5
    claims = claims[:at] + struct.pack(">BI", 0xC6, 1 << 30) + claims[at + 1 :]
    with pytest.raises(RecorderError, match="'?1073741824 bytes follow, and .* is the most that there can be"):
        read(NamedMpkFileRecorder, claims)
    with pytest.raises(RecorderError, match="is the most that there can be"):
        read(NamedMpkGzFileRecorder, gzip.compress(claims))
    assert gzipped.BEST_RATIO * len(in_memory(BinGzFileRecorder, np.zeros(1 << 22))) > 1 << 25  # a real one is let in


def test_msgpack_is_plain_and_its_limit_is_named(tmp_path):
    x = np.arange(6, dtype=">f4").reshape(2, 3).T
    tree = msgpack.unpackb(in_memory(NamedMpkFileRecorder, {"x": x, "t": (1, [2]), "n": None}))
    assert list(tree) == ["format", "version", "precision", "data", "crc32"]
    assert tree["data"]["t"] == {"@": "tuple", "items": [1, [2]]} and tree["data"]["n"] is None
    found = tree["data"]["x"]
    assert (np.frombuffer(found["data"], "<f4").reshape(found["shape"]) == x).all() and found["dtype"] == "float32"
    # Lengths are msgpack's own choices: the library writes the same bytes, up to the checksum.
    for size in (0, 1, 255, 256, 65535, 65536):
        blob = in_memory(NamedMpkFileRecorder, np.zeros(size, np.uint8))
        assert msgpack.packb(msgpack.unpackb(blob))[:-5] == blob[:-5]
    vast = np.broadcast_to(np.int8(1), (1 << 32,))
    with pytest.raises(RecorderError, match=r"'/v' has 4294967296 bytes, and msgpack holds .* BinFileRecorder\(\)\.save"):
        NamedMpkFileRecorder().save({"v": vast}, tmp_path / "new" / "a")
    assert not list(tmp_path.iterdir())


def test_aliases():
    assert DefaultRecorder is NamedMpkFileRecorder and DebugRecordSettings is PrettyJsonFileRecorder
    assert NoStdTrainingRecorder is BinFileRecorder and NoStdInferenceRecorder is BinBytesRecorder
    assert repr(CompactRecorder()) == "CompactRecorder(HalfPrecisionSettings)" and CompactRecorder.suffix == ".mpk"
    assert SensitiveCompactRecorder().settings.name == "half" and SensitiveCompactRecorder.suffix == ".bin.gz"
    assert CompactRecorder(FullPrecisionSettings).settings.name == "full"
    assert sorted(kind.suffix for kind in KINDS) == sorted(SUFFIXES)
    assert {kind.__name__ for kind in KINDS} <= set(ruda_record.__all__)
