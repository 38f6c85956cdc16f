"""Readers of .mpk and .json see for themselves: what is forged behind right checksums is refused by what is wrong."""
from __future__ import annotations

import io
import json
import struct
import time
import zlib

import ml_dtypes
import msgpack
import numpy as np
import pytest

from ruda_record import NamedMpkFileRecorder, PrettyJsonFileRecorder, RecorderError
from ruda_record.encode import Encoder

from ._helpers import assert_same, read

FRONT = {"format": "ruda record", "version": 1, "precision": "full"}


def mpk(data: bytes, **changed: object) -> bytes:
    """A record around any msgpack, with the right checksum."""
    front = b"\x85" + b"".join(msgpack.packb(part) for item in {**FRONT, **changed}.items() for part in item)
    front += msgpack.packb("data") + data + msgpack.packb("crc32")
    return front + struct.pack(">BI", 0xCE, zlib.crc32(front))


def text(data: str, **changed: object) -> bytes:
    """A record around any JSON; null stands for the checksum of what was edited by hand."""
    front = json.dumps({**FRONT, **changed})[:-1]
    return f'{front}, "data": {data}, "crc32": null}}'.encode("utf-8", "surrogatepass")


def array(dtype="int8", shape=(3,), **rest: object) -> dict:
    return {"@": "array", "dtype": dtype, "shape": list(shape), **rest}


TREES = [  # what is the same in both: (data, message)
    ({"w": {"@": "object"}}, "'/w': unknown kind 'object'"),
    ({"w": {"@": "tuple", "items": 3}}, "'/w': the items of a tuple are a list"),
    ({"w": {"@": "tuple"}}, "expected the key 'items', found the end"),
    ({"w": {"@": "tuple", "items": [], "more": 1}}, "the key 'more' does not belong here"),
    ({"w": {"@": 3}}, "expected a kind, found int"),
    ({"w": {"@": ["tuple"]}}, "expected a kind, found a list"),
    ({"w": {"a": 1, "@": "tuple"}}, "the key '@' is not the first"),
    ({"w": {"@": "dict", "items": [["a", 1], ["a", 2]]}}, "'/w/a': this name occurs twice"),
    ({"w": {"@": "dict", "items": [["a", 1, 2]]}}, "a dict's items are pairs"),
    ({"w": {"@": "dict", "items": [["a"]]}}, "a dict's items are pairs"),
    ({"w": {"@": "dict", "items": [[]]}}, "a dict's items are pairs"),
    ({"w": {"@": "dict", "items": ["ab"]}}, "a dict's items are pairs"),
    ({"w": {"@": "dict", "items": [[1, 1]]}}, "expected a key, found int"),
    ({"w": array("object")}, "'/w': unknown dtype 'object', known are bool,"),
    ({"w": array("<f4")}, "unknown dtype '<f4'"),
    ({"w": array(3)}, "expected the dtype, found int"),
    ({"w": array(shape=[-3])}, "'/w': an axis length of -3"),
    ({"w": array(shape=[True])}, "expected an axis length, found bool"),
    ({"w": array(shape=[1.0])}, "expected an axis length, found float"),
    ({"w": array(shape=[1] * 65)}, "a shape of more than 64 axes"),
    ({"w": {**array(), "shape": 3}}, "expected a shape, found a value"),
    ({"w": array(shape=[2**40, 2**30])}, "is too large"),
    ({"w": array("float16", [2**63])}, "is too large"),
    ({"w": array(shape=[0, 2**40, 2**40])}, "is too large"),
    ({"w": array()}, "expected the key '.*', found the end"),
    ({"w": {"@": "scalar", "dtype": "int8", "shape": []}}, "expected the key '.*', found 'shape'"),
]


@pytest.mark.parametrize(("data", "message"), TREES)
def test_CKPT_03_what_is_wrong_in_a_tree_is_named(data, message):
    for kind, blob in ((NamedMpkFileRecorder, mpk(msgpack.packb(data))), (PrettyJsonFileRecorder, text(json.dumps(data)))):
        with pytest.raises(RecorderError, match=message):
            read(kind, blob)


MPK = [
    (msgpack.packb(array(data=b"1234")), "3 elements of int8 are 3 bytes, found 4 bytes"),
    (msgpack.packb(array(data="123")), "found something else"),
    (msgpack.packb(array("float32", data=b"123")), "3 elements of float32 are 12 bytes"),
    (msgpack.packb({"@": "int", "data": "3"}), "expected the data, found str"),
    (msgpack.packb({"@": "bytes", "base64": "AA=="}), "unknown kind 'bytes'"),
    (b"\x82\xa1a\x01\xa1a\x02", "'/a': this name occurs twice"),
    (b"\x81\x01\x02", "expected a key that is a string, found int"),
    (b"\x81\xc4\x01a\x02", "found bytes"), (b"\xa1\xff", "text that is not UTF-8"), (b"\xc1", "a kind of value"),
    (b"\xd6\xff\0\0\0\0", "a kind of value"), (b"\xdb\xff\xff\xff\xff", "takes more than"),
    (b"\xdf\xff\xff\xff\xff", "this name occurs twice|cut short"),
    (b"\xdd\xff\xff\xff\xff" + bytes(300_000), "more than 262144 values"), (b"\x91" * 100_000, "deeper than 100 levels"),
    (b"\x81\xa1a" * 100_000, "deeper than 100 levels"),
]  # fmt: skip
JSON = [
    (json.dumps(array(values=[1, 2])), "its shape has 3 elements, found 2"),
    (json.dumps(array(values=[1, 2, 3, 4])), "its shape has 3 elements, found more"),
    (json.dumps(array(values=[[1, 2, 3]])), "expected a number, found"),
    (json.dumps(array(values=[1, 2, 300])), "elements that are not int8"),
    (json.dumps(array(values=[1, 2, 3.5])), "elements that are not int8"),
    (json.dumps(array(values=[1, "inf", 3])), "elements that are not int8"),
    (json.dumps(array("bool", values=[True, 1, False])), "elements that are not bool"),
    (json.dumps(array("float16", values=[1, 2, 1e9])), "a number beyond the largest float16"),
    (json.dumps(array("float32", values=[1, 2, "nan:3"])), "is not the bits of a NaN"),
    (json.dumps(array("float32", values=[1, 2, "nan:7fffffff0"])), "is no number"),
    (json.dumps(array("float32", values=[1, 2, "abc"])), "is no number"),
    (json.dumps(array("float32", values=[1, 2, True])), "elements that are not float32"),
    ('{"@": "int", "hex": "0x10"}', "hexadecimal"), ('{"@": "bytes", "base64": "A"}', "Invalid base64"),
    ('{"@": "float", "value": "infinity"}', "is no number"), ('{"a": 1, "a": 2}', "'/a': this name occurs twice"),
    ("{1: 2}", "expected a key that is a string"), ("[1, 2", "expected ',' or ']'"), ("[1 2]", "expected ',' or ']'"),
    ("[1,]", "expected a value, found"), ("007", "expected"), ("1e999", "too large"), (str(2**64), "too large"),
    ("1" * 5000, "expected a value|too large"), ("NaN", "expected a value"), ("'a'", "expected a value"), ('"\x01"', "not valid"),
    ('"\\x"', "not valid"), ('"\\ud8"', "not valid"), (" " * 5000 + "1", "more than 4096 bytes of space"),
    ("[" * 100_000, "deeper than 100 levels"), ("[" + "0," * 300_000, "more than 262144 values"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "blob", "message"), [
    *((NamedMpkFileRecorder, mpk(data), message) for data, message in MPK),
    *((PrettyJsonFileRecorder, text(data), message) for data, message in JSON),
    (PrettyJsonFileRecorder, b"{} ", "does not begin with the format"), (PrettyJsonFileRecorder, b"", "cut short"),
    (PrettyJsonFileRecorder, b"[1]", "does not begin with the format"), (NamedMpkFileRecorder, b"", "cut short"),
    (NamedMpkFileRecorder, b"\x89RUDA", "does not begin with the format"),
    (PrettyJsonFileRecorder, text("1", format="other"), "its format is 'other', expected 'ruda record'"),
    (PrettyJsonFileRecorder, text("1") + b"1", "something follows the record"),
    (PrettyJsonFileRecorder, text("1").replace(b"null", b"12"), 'write "crc32": null'),
    (PrettyJsonFileRecorder, text("1").replace(b"null}", b'null, "a": 1}'), "the key 'a' does not belong here"),
], ids=lambda value: "" if isinstance(value, bytes) else None)  # fmt: skip
def test_CKPT_04_hostile_text_and_msgpack_are_refused_at_once(kind, blob, message):
    started = time.process_time()
    with pytest.raises(RecorderError, match=message) as raised:
        read(kind, blob)
    assert time.process_time() - started < 2 and len(str(raised.value)) < 500 and str(raised.value).isprintable()


@pytest.mark.parametrize("version", [0, 2, 7])
def test_other_versions_and_precisions_are_refused_by_name(version):
    def packed(**changed):
        return mpk(b"\x01", **changed)

    def printed(**changed):
        return text("1", **changed)

    for kind, made in ((NamedMpkFileRecorder, packed), (PrettyJsonFileRecorder, printed)):
        assert read(kind, made()) == 1
        with pytest.raises(RecorderError, match=f"version {version}, this program reads up to 1"):
            read(kind, made(version=version))
        with pytest.raises(RecorderError, match="unknown precision 'quarter', known are full, half, double"):
            read(kind, made(precision="quarter"))


def test_a_json_record_may_be_edited_and_laid_out_by_hand():
    compact = text('{"w":{"@":"array","dtype":"float32","shape":[2,2],"values":[1,2.50,\n-0,1E2]},"n":[ ],"m":{}}')
    assert_same(read(PrettyJsonFileRecorder, compact), {"w": np.array([[1, 2.5], [-0.0, 100]], np.float32), "n": [], "m": {}})


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_every_number_of_sixteen_bits_survives_print(dtype):
    every = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    check_json(every)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_random_bits_and_the_hard_cases_of_rounding_survive_print(dtype):
    wide = np.dtype(f"u{np.dtype(dtype).itemsize}")
    rng = np.random.default_rng(0)
    check_json(rng.integers(0, 1 << (8 * wide.itemsize), 20_000, wide).view(dtype))
    near = np.array([0.1, 1 / 3, 16777216, 16777217, 8.5e37, 1e-45, 3.4028235e38, 2**-126, 5e-324, 1e22, 1e23], np.float64)
    with np.errstate(all="ignore"):
        check_json(np.concatenate([near.astype(dtype), np.nextafter(near.astype(dtype), dtype(0))]))


def check_json(array: np.ndarray) -> None:
    file, recorder = io.BytesIO(), PrettyJsonFileRecorder()
    recorder._write(file, Encoder(array, recorder.settings))
    assert_same(read(PrettyJsonFileRecorder, file.getvalue()), array)
    shown = json.loads(file.getvalue())["data"]["values"]
    floats = np.array([float(x.partition(":")[0]) if isinstance(x, str) else x for x in shown])
    with np.errstate(all="ignore"):  # another reader, which parses float64 and rounds, finds the same numbers
        np.testing.assert_array_equal(floats.astype(array.dtype).astype(np.float64), array.astype(np.float64))
