"""Nothing damaged or hostile is ever loaded: each is refused with an error that says what is wrong, at little cost."""
from __future__ import annotations

import pickle
import struct
import time
import tracemalloc
import zlib

import ml_dtypes
import msgpack
import numpy as np
import pytest

from ruda_record import BinBytesRecorder, BinFileRecorder, RecorderError

from ._helpers import MAGIC, PRELUDE, assert_same, entry, forge, forge_arrays, header

DATA = {
    "model": {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.array(1.5, ml_dtypes.bfloat16)},
    "moments": [np.zeros((0, 3)), np.arange(70.0)],
    "state": (3, 2**70, 0.1, "text", b"bytes", None, True, np.float32(7)),
}


def load(blob: bytes):
    return BinBytesRecorder().load(blob)


@pytest.fixture(scope="module")
def good() -> bytes:
    return BinBytesRecorder().save(DATA)


def list_of(length: int, items: bytes) -> bytes:
    """The msgpack of a tagged list of items that are msgpack already."""
    return b"\xdd" + struct.pack(">I", length + 1) + msgpack.packb("list") + items


@pytest.mark.parametrize("flip", [0x01, 0x10, 0x80, 0xFF])
def test_CKPT_02_a_flip_in_any_byte_is_seen(good, flip, tmp_path):
    path, recorder = tmp_path / "x.bin", BinFileRecorder()
    for at in range(len(good)):
        flipped = bytearray(good)
        flipped[at] ^= flip
        with pytest.raises(RecorderError):
            load(bytes(flipped))
        if at % 16 == 0:  # through a file, and without keeping the arrays, the same code reads it
            path.write_bytes(flipped)
            with pytest.raises(RecorderError, match=r"x\.bin: "):
                recorder.verify(path)
    assert_same(load(good), DATA)


def test_CKPT_02_any_truncation_and_any_addition_is_seen(good):
    for length in range(len(good)):
        with pytest.raises(RecorderError, match="cut short|not a ruda record"):
            load(good[:length])
    for more in (b"\0", b"x", bytes(256), good):
        with pytest.raises(RecorderError, match="too long"):
            load(good + more)


def test_a_lazy_load_sees_damage_in_the_header_and_verify_in_the_rest(good, tmp_path):
    path, recorder = tmp_path / "x.bin", BinFileRecorder()
    for at in (3, 40, 300, len(good) - 300):
        flipped = bytearray(good)
        flipped[at] ^= 4
        path.write_bytes(flipped)
        with pytest.raises(RecorderError):
            recorder.verify(path)
        if at < 300:
            with pytest.raises(RecorderError):
                recorder.load(path, lazy=True)
    with pytest.raises(RecorderError, match=r"'/moments/1' is damaged: the checksum of its bytes is \w{8}, expected"):
        recorder.verify(path)


@pytest.mark.parametrize("version", [0, 2, 7, 2**32 - 1])
def test_other_versions_are_refused_by_name(version):
    with pytest.raises(RecorderError, match=f"version {version}, this program reads up to 1"):
        load(forge(header(msgpack.packb({})), version=version))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"w": entry("float32", [3, 5], 0, 40)}, "'/w': float32 of shape '(3, 5)' needs 60 bytes, the header says 40"),
        ({"w": entry("float32", [3], 0, 0)}, "'/w': float32 of shape '(3,)' needs 12 bytes"),
        ({"v": entry("int8", [9], 0, 9), "w": entry("int8", [9], 0, 9)}, "'/w': its offset 0 overlaps"),
        ({"v": entry("int8", [300], 0, 300), "w": entry("int8", [9], 256, 9)}, "'/w': its offset 256 overlaps"),
        ({"v": entry("int8", [9], 256, 9), "w": entry("int8", [9], 0, 9)}, "'/v': its offset 256 leaves a gap"),
        ({"w": entry("int8", [9], 9, 9)}, "'/w': its offset 9 leaves a gap"),
        ({"w": entry("int8", [9], -256, 9)}, "'/w': the offset is negative (-256)"),
        ({"w": entry("int8", [-3, -3], 0, 9)}, "'/w': an axis length is negative (-3)"),
        ({"w": entry("int8", [9], 0, -9)}, "'/w': the number of bytes is negative (-9)"),
        ({"w": entry("int8", [513], 0, 513)}, "'/w': its bytes 0 to 513 lie outside the data, which ends at 512"),
        ({"w": entry("object", [1], 0, 8)}, "'/w': unknown dtype 'object', known are bool,"),
        ({"w": entry("<f4", [1], 0, 4)}, "unknown dtype '<f4'"),
        ({"w": entry("complex64", [1], 0, 8)}, "unknown dtype 'complex64'"),
        ({"w": entry("int8", [True], 0, 1)}, "'/w': expected an axis length, found bool"),
        ({"w": entry("int8", [9.0], 0, 9)}, "'/w': expected an axis length, found float"),
        ({"w": entry("int8", 9, 0, 9)}, "'/w': expected a shape of at most 64 axes, found none"),
        ({"w": entry("int8", [9], None, 9)}, "'/w': expected the offset, found NoneType"),
        ({"w": entry("int8", [9], "0", 9)}, "'/w': expected the offset, found NoneType"),
        ({"w": entry("int8", [1], 0, 1)}, "holds 512 bytes of data, but its header describes 256"),
        ({"w": entry("int8", [1] * 65, 0, 1)}, "at most 64 axes, found 65"),
        ({"w": ["array", "int8"]}, "an array of 2 beginning with 'array'"),
    ],
)
def test_CKPT_03_what_a_header_says_of_an_array_must_agree_with_itself_and_the_file(arrays, message):
    with pytest.raises(RecorderError) as raised:
        load(forge_arrays(arrays, bytes(512)))
    assert message in str(raised.value)


def test_CKPT_03_a_name_that_occurs_twice_is_refused():
    twice = b"\x82" + 2 * (msgpack.packb("w") + msgpack.packb(entry("int8", [0], 0, 0)))
    with pytest.raises(RecorderError, match="'/w': this name occurs twice"):
        load(forge(header(twice)))


def test_CKPT_03_a_forged_record_that_is_right_does_load():
    # Otherwise the refusals above could have another reason than the one that they are for.
    data = np.arange(9, dtype=np.int8).tobytes()
    blob = forge_arrays({"w": entry("int8", [3, 3], 0, 9, zlib.crc32(data))}, data.ljust(256, b"\0"))
    assert_same(load(blob), {"w": np.arange(9, dtype=np.int8).reshape(3, 3)})


EMPTY = msgpack.packb(entry("int8", [0], 0, 0))
HOSTILE = {  # made when they are asked for: some are large
    "petabytes": lambda: forge_arrays({"w": entry("float32", [2**40, 2**30], 0, 0)}),
    "petabytes that agree": lambda: forge_arrays({"w": entry("float16", [2**61], 0, 2**62)}, bytes(256)),
    "a product that wraps to nothing": lambda: forge_arrays({"w": entry("float16", [2**63], 0, 0)}),
    "the largest numbers": lambda: forge_arrays({"w": entry("float64", [2**64 - 1] * 64, 2**64 - 1, 2**64 - 1)}),
    "an overflow behind an empty axis": lambda: forge_arrays({"w": entry("int8", [0, 2**40, 2**40], 0, 0)}),
    "a million axes": lambda: forge_arrays({"w": entry("int8", [1] * 10**6, 0, 1)}),
    "lists 100,000 deep": lambda: forge(header((b"\x92" + msgpack.packb("list")) * 100_000)),
    "maps 100,000 deep": lambda: forge(header(b"\x81\xa1a" * 100_000)),
    "bare arrays 100,000 deep": lambda: forge(header(b"\x91" * 100_000)),
    "a list of billions": lambda: forge(header(b"\xdd\xff\xff\xff\xff\xa4list")),
    "a map of billions": lambda: forge(header(b"\xdf\xff\xff\xff\xff")),
    "a string of gigabytes": lambda: forge(header(b"\xdb\xff\xff\xff\xff")),
    "bytes of gigabytes": lambda: forge(header(b"\xc6\xff\xff\xff\xff")),
    "an extension of gigabytes": lambda: forge(header(b"\xc9\xff\xff\xff\xff\x05")),
    "a timestamp": lambda: forge(header(b"\xd6\xff\0\0\0\0")),
    "a byte that msgpack does not use": lambda: forge(header(b"\xc1")),
    "ten million empty maps": lambda: forge(header(list_of(10_000_000, b"\x80" * 10_000_000))),
    "too many arrays": lambda: forge(header(list_of(100_000, EMPTY * 100_000))),
    "a long name over all of them": lambda: forge(
        header(b"\x81" + msgpack.packb("k" * (8 << 20)) + list_of(70_000, EMPTY * 70_000))
    ),
    "a header longer than the file": lambda: MAGIC + struct.pack("<IIQ", 1, 2**32 - 1, 256) + bytes(232),
    "a header longer than allowed": lambda: MAGIC + struct.pack("<IIQ", 1, 13 << 20, 16 << 20) + bytes((16 << 20) - 24),
    "a file that ends behind the prelude": lambda: PRELUDE.pack(MAGIC, 1, 0, 24),
    "an empty header": lambda: forge(b""),
    "text that is not UTF-8": lambda: forge(header(b"\xa1\xff")),
    "keys that are not text": lambda: forge(header(msgpack.packb({1: 2}))),
    "bytes as keys": lambda: forge(header(msgpack.packb({b"a": 2}))),
    "an array without a kind": lambda: forge(header(b"\x90")),
    "an array of an unknown kind": lambda: forge(header(msgpack.packb(["object", "os.system", "true"]))),
    "a scalar of a wrong size": lambda: forge(header(msgpack.packb(["scalar", "float32", b"abc"]))),
    "a scalar of an unknown dtype": lambda: forge(header(msgpack.packb(["scalar", "object", bytes(8)]))),
    "an integer that is text": lambda: forge(header(msgpack.packb(["int", "12"]))),
    "an unknown precision": lambda: forge(header(msgpack.packb({}), "quarter")),
    "more behind the header": lambda: forge(header(msgpack.packb({})) + b"\xc0"),
    "another header": lambda: forge(msgpack.packb({"data": {}, "precision": "full"})),
    "a header without data": lambda: forge(msgpack.packb({"precision": "full"})),
    "pickle": lambda: pickle.dumps({"w": np.zeros(3)}),
    "nothing": lambda: b"",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_CKPT_04_hostile_records_cost_neither_time_nor_memory(name, tmp_path):
    path, recorder = tmp_path / "hostile.bin", BinFileRecorder()
    path.write_bytes(HOSTILE[name]())
    for read in (recorder.load, recorder.verify, lambda path: recorder.load(path, lazy=True)):
        started = time.process_time()
        with pytest.raises(RecorderError, match=r"hostile\.bin: ") as raised:
            read(path)
        assert time.process_time() - started < 1
        assert len(str(raised.value)) < len(str(path)) + 500 and str(raised.value).isprintable()


@pytest.mark.parametrize("name", ["petabytes that agree", "a list of billions", "a string of gigabytes",
                                  "ten million empty maps", "a long name over all of them"])  # fmt: skip
def test_CKPT_04_memory_stays_flat(name):
    blob = HOSTILE[name]()
    tracemalloc.start()
    try:
        with pytest.raises(RecorderError):
            load(blob)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100e6


def test_a_thousand_mutations_behind_right_checksums_load_or_are_refused(good):
    # With the checksum of the header put right again, the reader of the header has to see for itself.
    rng = np.random.default_rng(1)
    length = PRELUDE.unpack(good[: PRELUDE.size])[2]
    start = -(-(PRELUDE.size + length + 4) // 256) * 256
    original, rest = good[PRELUDE.size : PRELUDE.size + length], good[start:]
    refused, started = 0, time.process_time()
    for _ in range(1000):
        mutated = bytearray(original)
        for _ in range(rng.integers(1, 4)):
            at, kind = int(rng.integers(len(mutated))), rng.integers(4)
            if kind == 0:
                mutated[at] = rng.integers(256)
            elif kind == 1:
                mutated[at] = rng.choice([0x7F, 0x80, 0x90, 0xC0, 0xC4, 0xCF, 0xD9, 0xDB, 0xDD, 0xDF, 0xFF])
            elif kind == 2:
                del mutated[at : at + int(rng.integers(1, 9))]
            else:
                mutated[at:at] = rng.bytes(int(rng.integers(1, 9)))
        try:
            load(forge(bytes(mutated), rest))
        except RecorderError:
            refused += 1
    assert refused > 500 and time.process_time() - started < 10


def test_three_hundred_mutated_files_are_refused(good):
    rng = np.random.default_rng(2)
    for _ in range(300):
        mutated = bytearray(good)
        begin = int(rng.integers(len(good)))
        end = min(len(good), begin + int(rng.integers(1, 64)))
        kind = rng.integers(4)
        if kind == 0:
            mutated[begin:end] = rng.bytes(end - begin)
        elif kind == 1:
            del mutated[begin:end]
        elif kind == 2:
            mutated[begin:begin] = mutated[begin:end]
        else:
            mutated[8:24] = struct.pack("<IIQ", 1, int(rng.integers(2**32)), int(rng.integers(2**63)))
        if mutated != good:
            with pytest.raises(RecorderError):
                load(bytes(mutated))
