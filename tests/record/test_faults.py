"""Kills at random moments, and ten thousand damaged records: each either loads whole or is refused, at little cost."""
from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from pathlib import Path

import msgpack
import numpy as np
import pytest

from ruda_record import BinBytesRecorder, BinFileRecorder, RecorderError, blocks
from ruda_record.blocks import combine

from ._helpers import PRELUDE, assert_same, entry, forge, forge_arrays, header
from .test_damage import DATA

ROOT = Path(__file__).resolve().parents[2]
posix = pytest.mark.skipif(os.name == "nt", reason="forks and signals")

KILLS = """
import itertools, os, random, signal, sys, time, numpy as np
from ruda_record import BinFileRecorder
folder, kills, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
path, recorder, dice, halfway = folder + "/a.bin", BinFileRecorder(), random.Random(5), 0
recorder.save({"version": 0, "x": np.zeros(size)}, path)
last = 0
for done in range(10 * kills):
    if done >= kills and halfway > kills // 10:
        break  # on a busy machine more kills are needed until enough of them fall into a save
    child = os.fork()
    if child == 0:
        try:
            for version in itertools.count(last + 1):
                recorder.save({"version": version, "x": np.full(size, float(version))}, path)
        finally:
            os._exit(1)
    time.sleep(dice.uniform(0, float(sys.argv[4])))
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status), status
    left = [name for name in os.listdir(folder) if name.endswith(".tmp")]
    assert len(left) <= 1, left  # the next save clears what the one before left
    halfway += len(left)
    data = recorder.load(path)
    assert data["version"] >= last and data["x"].shape == (size,) and (data["x"] == data["version"]).all()
    last = data["version"]
recorder.save({"version": -1, "x": np.zeros(0)}, path)
assert os.listdir(folder) == ["a.bin"], os.listdir(folder)
print(halfway, last)
"""


@posix
@pytest.mark.parametrize(
    ("kills", "size", "wait"), [(200, 20_000, 0.015), (12, 3_000_000, 0.15)], ids=["200 kills", "written by threads"]
)
def test_CKPT_01_killed_at_random_moments_a_record_is_readable_every_time(kills, size, wait, tmp_path):
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILLS, str(tmp_path), str(kills), str(size), str(wait)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    halfway, _ = map(int, done.stdout.split())
    assert halfway > kills // 10  # otherwise hardly any kill fell into a save


def mutation(good: bytes, head: bytes, rest: bytes, rng: np.random.Generator) -> bytes:
    """One damaged record: in its bytes, or in its header behind checksums that are right again."""
    kind = rng.integers(6)
    if kind >= 3:
        mutated = bytearray(head)
        at = int(rng.integers(len(head)))
        if kind == 3:
            mutated[at] ^= int(rng.integers(1, 256))
        elif kind == 4:  # a length or count, in each of msgpack's sizes
            numbers = [b"\xdd\xff\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\x00\xff\xff\xff",
                       b"\xcf" + bytes([255] * 8), b"\xce\x80\0\0\0", b"\xd3" + bytes([128] * 8)]  # fmt: skip
            mutated[at : at + int(rng.integers(6))] = numbers[rng.integers(len(numbers))]
        else:
            del mutated[at : at + int(rng.integers(1, 9))]
        return forge(bytes(mutated), rest)
    mutated = bytearray(good)
    at = int(rng.integers(len(good)))
    if kind == 0:
        for place in rng.integers(len(good), size=rng.integers(1, 4)):
            mutated[int(place)] ^= int(rng.integers(1, 256))
    elif kind == 1:
        del mutated[at:]
    else:
        lengths = (1, int(rng.integers(2**32)), int(rng.integers(2**63)) if rng.integers(2) else len(good))
        mutated[8:24] = struct.pack("<IIQ", *lengths)
    return bytes(mutated)


def test_CKPT_02_ten_thousand_mutated_records_are_refused_quickly():
    recorder, rng = BinBytesRecorder(), np.random.default_rng(6)
    good = recorder.save(DATA)
    length = PRELUDE.unpack(good[: PRELUDE.size])[2]
    start = -(-(PRELUDE.size + length + 4) // 256) * 256
    head, rest = good[PRELUDE.size : PRELUDE.size + length], good[start:]
    refused = slowest = 0
    for _ in range(10_000):
        mutated = mutation(good, head, rest, rng)
        began = time.process_time()
        try:
            got = recorder.load(mutated)
        except RecorderError:
            refused += 1
        else:  # a header may say something else that is as valid: another name, another number
            assert isinstance(recorder.save(got), bytes)
        slowest = max(slowest, time.process_time() - began)
    assert slowest < 1 and refused > 9000, (slowest, refused)


def test_CKPT_02_a_thousand_mutated_records_cost_no_memory():
    recorder, rng = BinBytesRecorder(), np.random.default_rng(7)
    good = recorder.save(DATA)
    length = PRELUDE.unpack(good[: PRELUDE.size])[2]
    start = -(-(PRELUDE.size + length + 4) // 256) * 256
    tracemalloc.start()
    try:
        for _ in range(1000):
            try:
                recorder.load(mutation(good, good[PRELUDE.size : PRELUDE.size + length], good[start:], rng))
            except RecorderError:
                pass
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("lengths", [(0, 0), (1, 1), (9, 0), (0, 9), (1000, 1), (5, 70_001), (12345, 1 << 20)])
def test_checksums_of_parts_make_that_of_the_whole(lengths):
    a, b = (np.random.default_rng(n).bytes(n) for n in lengths)
    assert combine(zlib.crc32(a), zlib.crc32(b), len(b)) == zlib.crc32(a + b)
    assert combine(zlib.crc32(b"12345"), zlib.crc32(b"6789"), 4) == 0xCBF43926  # the check value of this crc


@pytest.mark.parametrize("block", [1 << 12, 1000 * 8, 8 << 20])
def test_blocks_and_threads_write_and_read_the_same_bytes(block, tmp_path, monkeypatch):
    rng = np.random.default_rng(8)
    data = {
        "large": rng.random(40_001), "turned": rng.random((300, 200)).T, "small": [rng.random(k) for k in range(30)],
        "halves": np.arange(9999, dtype=np.float16), "odd": np.arange(777, dtype=np.int8), "none": np.zeros((0, 3)),
    }  # fmt: skip
    expected = BinBytesRecorder().save(data)
    monkeypatch.setattr(blocks, "BLOCK", block)
    path = BinFileRecorder().save(data, tmp_path / "a")
    assert path.read_bytes() == expected
    assert_same(BinFileRecorder().load(path), data)
    BinFileRecorder().verify(path)
    assert_same(BinFileRecorder().load_one(path, "/large"), data["large"])
    damaged = bytearray(expected)
    damaged[len(expected) // 2] ^= 1
    path.write_bytes(damaged)
    for read in (BinFileRecorder().load, BinFileRecorder().verify):
        with pytest.raises(RecorderError, match="is damaged: the checksum of its bytes"):
            read(path)


def test_an_array_beyond_four_gibibytes_is_read_by_itself(tmp_path):
    """The file has holes for most of its 6 GiB, so it takes neither space nor time."""
    big, tail = 6 << 30, np.arange(100, dtype=np.float32)
    raw = tail.tobytes()
    arrays = {"big": entry("int8", [big], 0, big), "tail": entry("float32", [100], big, 400, zlib.crc32(raw))}
    start = len(forge_arrays(arrays))
    front = forge(header(msgpack.packb(arrays)), length=start + big + 512)
    path = tmp_path / "big.bin"
    with open(path, "wb") as file:
        file.write(front)
        file.seek(start + big)
        file.write(raw.ljust(512, b"\0"))
    began = time.process_time()
    tracemalloc.start()
    try:
        assert_same(BinFileRecorder().load_one(path, "/tail"), tail)
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()
    assert time.process_time() - began < 1
    lazy = BinFileRecorder().load(path, lazy=True)
    assert lazy["big"].shape == (big,) and lazy["big"][-1] == 0 and lazy["tail"].tolist() == tail.tolist()


def test_one_part_is_read_and_verified_without_the_rest(tmp_path):
    data = {"a": np.arange(5), "b": [np.ones(3), {"x/y~z": (np.zeros(2), 7)}], "n": np.float32(2)}
    path = BinFileRecorder().save(data, tmp_path / "a")
    for name, value in (
        ("/a", data["a"]), ("/b/0", data["b"][0]), ("/b/1/x~1y~0z", data["b"][1]["x/y~z"]), ("/b/1/x~1y~0z/1", 7),
        ("/b", data["b"]), ("", data), ("/n", data["n"]),
    ):  # fmt: skip
        assert_same(BinFileRecorder().load_one(path, name), value)
    for name, message in (("/c", "no '/c': there is no 'c' in a dict, whose names are 'a, b, n'"), ("a", "write '/a'"),
                          ("/b/2", "no '2' in a list"), ("/a/0", "no '0' in an array"), ("/b/-1", "no '-1'")):  # fmt: skip
        with pytest.raises(RecorderError, match=message):
            BinFileRecorder().load_one(path, name)
    blob = bytearray(path.read_bytes())
    blob[-256] ^= 1  # the first byte of the last array
    path.write_bytes(blob)
    assert_same(BinFileRecorder().load_one(path, "/a"), data["a"])
    with pytest.raises(RecorderError, match="is damaged"):
        BinFileRecorder().load_one(path, "/b/1")


@pytest.mark.skipif(not hasattr(os, "fdatasync"), reason="the system has no fdatasync")
def test_CKPT_01_a_disk_that_fails_while_threads_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = BinFileRecorder().save({"version": 1}, tmp_path / "a")
    data = [np.full(5000, k) for k in range(40)]
    monkeypatch.setattr(blocks, "BLOCK", 1 << 14)
    monkeypatch.setattr(blocks, "SYNC_EVERY", 1 << 16)
    calls, sync = [], os.fdatasync

    def failing(descriptor):
        calls.append(descriptor)
        if len(calls) == 5:
            raise OSError(28, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(RecorderError, match=r"a\.bin: No space left on device"):
        BinFileRecorder().save(data, path)
    assert BinFileRecorder().load(path) == {"version": 1} and list(tmp_path.iterdir()) == [path]
    assert_same(BinFileRecorder().load(BinFileRecorder().save(data, path)), data)
    assert len(calls) > 10
