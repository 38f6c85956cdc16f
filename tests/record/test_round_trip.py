"""What is saved comes back: types, order, dtypes, shapes and bits."""
from __future__ import annotations

import io
import tracemalloc
from collections import OrderedDict, namedtuple

import hypothesis.extra.numpy as hnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruda_record import (
    BinBytesRecorder,
    BinFileRecorder,
    DoublePrecisionSettings,
    FullPrecisionSettings,
    HalfPrecisionSettings,
    RecorderError,
    format,
    layout,
)

from ._helpers import assert_same

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = list(layout.DTYPES.values())


def again(data, settings=FullPrecisionSettings):
    recorder = BinBytesRecorder(settings)
    return recorder.load(recorder.save(data))


def check(data):
    assert_same(again(data), data)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (0, 3), (1, 0, 2), (5, 1, 3), (1,) * 64])
def test_CKPT_07_every_dtype_and_degenerate_shape(dtype, shape):
    bits = np.random.default_rng(0).integers(0, 256, int(np.prod(shape)) * dtype.itemsize, np.uint8)
    bits = bits & 1 if dtype == np.bool_ else bits
    array = bits.view(dtype).reshape(shape)
    check(array)
    check({"x": array, "y": [array]})


@pytest.mark.parametrize(
    "data",
    [
        None, True, 0, -1.5, "", b"", (), [], {}, {"meta": "x"}, {"": {"": ()}}, [[]], ((),),
        {"é/~\n\0\ud800": "\U0001f600"},
        {"name " * 50_000: np.arange(3)}, [None, True, False, 1, 1.0, "1", b"1"], (1, [2, (3, {"x": (4,)})]),
        [0, 1, -1, 127, 128, 2**63 - 1, -(2**63), 2**64 - 1, 2**64, -(2**63) - 1, 2**127, -(2**127), 10**5000],
        [0.0, -0.0, float("inf"), float("nan"), 5e-324, 1.7976931348623157e308, 0.1],
        list(range(1000)), bytes(range(256)) * 100, np.random.PCG64(7).state,
    ],
    ids=lambda data: repr(data)[:30] if not isinstance(data, list) else f"list of {len(data)}",
)  # fmt: skip
def test_CKPT_07_records_without_arrays_and_odd_names(data):
    check(data)


def test_numpy_scalars_stay_numpy_scalars():
    check([dtype.type(1) for dtype in DTYPES])
    check({"loss": np.float32(0.1), "nan": np.float64("nan"), "bf": BFLOAT16.type(-0.0)})


def test_every_bit_of_a_nan_survives():
    check(np.array([0x7FA00001, 0xFFC12345, 0x80000001], np.uint32).view(np.float32))
    check(np.arange(1 << 16, dtype=np.uint16).view(BFLOAT16))
    check(np.arange(1 << 16, dtype=np.uint16).view(np.float16))


@pytest.mark.parametrize("chunk", [16, 1 << 20])
def test_CKPT_05_any_strides_are_stored_in_c_order(chunk, monkeypatch):
    monkeypatch.setattr(format, "CHUNK", chunk)  # 16 bytes: every way of cutting an array up, on a small one
    x = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    cases = {
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "columns": x[:, :, ::2],
        "backwards": x[::-1, :, ::-1],
        "transposed": x.T,
        "moved": np.moveaxis(x, 0, 1),
        "broadcast": np.broadcast_to(np.float32(7), (3, 1, 5)),
        "big endian": x.astype(">i4").T,
        "half": np.arange(40, dtype=BFLOAT16)[::3],
        "empty": x[:, :0].T,
        "0-d": x[1, 2, 3, ...],
        "one long row": np.arange(50)[None, ::2],
        "diagonal": np.lib.stride_tricks.as_strided(np.arange(9), (3,), (32,)),
    }
    got = again(cases)
    assert_same(got, cases)
    assert got["fortran"].tolist() == [[0, 1, 2], [3, 4, 5]]
    arrays = [array for array in got.values() if isinstance(array, np.ndarray)]
    assert all(array.flags.c_contiguous and array.flags.writeable and array.flags.aligned for array in arrays)


def test_CKPT_12_one_array_in_two_places_is_stored_twice_and_comes_back_as_two():
    # The one copy of a tied parameter is the module's to keep: a record holds data, and data have no identity.
    x = np.arange(100.0)
    got = again({"embedding": x, "head": x})
    got["embedding"][0] = -1
    assert got["head"][0] == 0
    assert len(BinBytesRecorder().save({"embedding": x, "head": x})) > 1600


def plain_data():
    numbers = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([2**64, -(2**90)])
    text = st.text(st.characters(), max_size=6)  # lone surrogates too
    arrays = st.sampled_from(DTYPES).flatmap(
        lambda dtype: hnp.arrays(
            np.dtype(f"u{dtype.itemsize}"), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)
        ).map(lambda bits: (bits & 1).astype(bool) if dtype == np.bool_ else bits.view(dtype))
    )
    leaves = numbers | text | st.binary(max_size=20) | arrays | arrays.map(np.transpose)
    return st.recursive(
        leaves,
        lambda inner: st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(text, inner, max_size=4),
        max_leaves=20,
    )


@given(plain_data())
def test_any_plain_data_come_back(data):
    check(data)
    assert BinBytesRecorder().save(data) == BinBytesRecorder().save(again(data))


@given(plain_data())
def test_half_and_double_convert_float_arrays_and_nothing_else(data):
    def expected(value, dtypes):
        if isinstance(value, dict):
            return {key: expected(item, dtypes) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(expected(item, dtypes) for item in value)
        if isinstance(value, np.ndarray) and value.dtype.name in dtypes:
            return value.astype(dtypes[value.dtype.name])
        return value

    wide = dict.fromkeys(["float16", "bfloat16", "float32"], np.float64)
    with np.errstate(all="ignore"):
        assert_same(again(data, DoublePrecisionSettings), expected(data, wide))
        try:
            got = again(data, HalfPrecisionSettings)
        except RecorderError as error:
            assert "beyond 65504, the largest float16" in str(error)
        else:
            assert_same(got, expected(data, dict.fromkeys(["float32", "float64"], np.float16)))


def test_half_precision_refuses_to_lose_a_value_to_infinity():
    for dtype in (np.float32, np.float64):
        with pytest.raises(RecorderError, match=r"'/a/w' has finite values beyond 65504, the largest float16; .*Full"):
            again({"a": {"w": np.array([1, 65520], dtype)}}, HalfPrecisionSettings)
        got = again(np.array([65519, np.inf, -np.inf, 1e-8], dtype), HalfPrecisionSettings)
        assert got.dtype == np.float16 and got.tolist() == [65504, np.inf, -np.inf, 0]
    assert again(np.array([1e30], BFLOAT16), HalfPrecisionSettings).dtype == BFLOAT16


def test_settings_may_be_a_class_or_an_instance():
    assert BinFileRecorder().settings.name == BinFileRecorder(FullPrecisionSettings()).settings.name == "full"
    assert repr(BinBytesRecorder(HalfPrecisionSettings())) == "BinBytesRecorder(HalfPrecisionSettings)"
    for wrong in ("half", np.float16, None):
        with pytest.raises(TypeError, match=r"BinFileRecorder\(FullPrecisionSettings\)"):
            BinFileRecorder(wrong)
    with pytest.raises(TypeError, match="read_bytes"):
        BinBytesRecorder().load("a.bin")  # type: ignore[arg-type]


class Tensor:
    def numpy(self):
        raise AssertionError("a record does not convert what it was not given")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"a": {1: 2}}, r"'/a/1': keys are str, not int; write {str\(key\): value"),
        ({("a",): 2}, "keys are str, not tuple"),
        ({"a": [0, {1, 2}]}, r"'/a/1': it is a set, .* write list\(x\)"),
        (OrderedDict(a=1), r"this: it is a collections.OrderedDict, .* write dict\(x\)"),
        ([namedtuple("P", "x y")(1, 2)], r"'/0': .* write tuple\(x\)"),
        (bytearray(3), r"write bytes\(x\)"),
        ({"x": 1j}, "'/x': it is a complex"),
        ({"x": Tensor()}, r"'/x': .*Tensor, .* write x.numpy\(\)"),
        ({"x": np.array([{}])}, "'/x': arrays are of dtype bool, .*, not object"),
        ({"x": np.zeros(3, complex)}, "not complex128"),
        ({"x": np.zeros(3, "M8[s]")}, "not datetime64"),
        ({"x": np.zeros(3, [("a", "f4")])}, "'/x': arrays are of dtype"),
        ({"x": np.ma.masked_array([1.0], [True])}, r"MaskedArray, .* write np.asarray\(x\)"),
        (np.str_("x"), "numpy.str_"),
        ({"a": "x" * (13 << 20)}, "'/a': what is not an array takes more than"),
        ([b"x" * (7 << 20)] * 2, r"'/1': .* np.frombuffer\(blob, np.uint8\)"),
        (list(range(1 << 18)), r"at most 262144 values .* write np.asarray\(numbers\)"),
        ([np.zeros(0)] * ((1 << 16) + 1), "at most 65536 arrays"),
    ],
)
def test_what_a_record_cannot_hold_is_refused_by_name_before_anything_is_written(data, message, tmp_path):
    with pytest.raises(RecorderError, match=f"step.bin: a record cannot hold .*{message}"):
        BinFileRecorder().save(data, tmp_path / "new" / "step")
    assert not list(tmp_path.iterdir())


def test_depth_is_limited_and_a_cycle_is_refused():
    data = 1
    for level in range(100):
        data = [[data], (data,), {"x": data}][level % 3]
    check(data)
    with pytest.raises(RecorderError, match="nested deeper than 100 levels"):
        again([data])
    cycle = {}
    cycle["self"] = [cycle]
    with pytest.raises(RecorderError, match="or contains itself"):
        again(cycle)


def test_what_is_at_the_limits_can_be_saved_and_loaded():
    check({"values": list(range((1 << 18) - 5)), "x": b""})
    check([np.zeros(0, np.int8)] * (1 << 16))
    check(["x" * (4 << 20), b"x" * (4 << 20), "é" * (1 << 20)])


def test_a_big_endian_machine_would_write_and_read_the_same_bytes(monkeypatch):
    data = {"x": np.arange(5, dtype=np.float32), "b": np.array(1.5, BFLOAT16), "s": np.int64(-3), "t": np.array([True])}
    swapped = {key: value.view(f"u{value.itemsize}").byteswap().view(value.dtype) for key, value in data.items()}
    blob = BinBytesRecorder().save(data)
    monkeypatch.setattr(layout, "BIG_ENDIAN", True)  # there, the bytes of these values in memory would be those
    assert BinBytesRecorder().save(swapped) == blob
    got = BinBytesRecorder().load(blob)
    assert_same(got, swapped)
    assert got["x"].flags.writeable


@pytest.mark.parametrize("layout_of", [np.asarray, np.transpose], ids=["contiguous", "transposed"])
def test_saving_makes_no_second_copy_and_loading_only_one(layout_of, tmp_path):
    array = layout_of(np.ones((4096, 4096), np.float32))
    recorder = BinFileRecorder()
    tracemalloc.start()
    try:
        recorder.save({"w": array}, tmp_path / "x")
        saving = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        recorder.load(tmp_path / "x")
        loading = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        recorder.verify(tmp_path / "x")
        verifying = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert saving < 0.05 * array.nbytes and loading < 1.05 * array.nbytes and verifying < 0.05 * array.nbytes


def test_bytes_are_those_of_the_file(tmp_path):
    data = {"x": np.arange(3), "t": (1, 2)}
    blob = BinBytesRecorder().save(data)
    assert BinFileRecorder().save(data, tmp_path / "x").read_bytes() == blob
    for given_as in (bytes, bytearray, memoryview, lambda blob: io.BytesIO(blob).getbuffer()):
        assert_same(BinBytesRecorder().load(given_as(blob)), data)
