"""Datasets and the loader: order, errors, dtypes, transforms and windows; positions are in test_data_position.py."""
from __future__ import annotations

import collections
import itertools
import traceback

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import ArrayDataset, DataLoader, WindowDataset

from ._loaders import CPU, data, ids, loader_of, threads

# order


@pytest.mark.parametrize("prefetch", [0, 1, 2, 50])
def test_every_item_comes_once_an_epoch_with_its_row(prefetch, device):
    loader = DataLoader(data(), 3, seed=5, device=device, prefetch=prefetch)
    assert len(loader) == 4
    for epoch in range(3):
        assert loader.epoch == epoch
        batches = list(loader)
        assert [x.shape for x, _ in batches] == [(3, 2)] * 3 + [(1, 2)]
        assert all(x.device == device and x.dtype == rt.float64 and y.dtype == rt.int64 for x, y in batches)
        assert all(np.array_equal(x.numpy()[:, 0], 2 * y.numpy()) for x, y in batches)
        assert sorted(sum(ids(batches), [])) == list(range(10))


def test_the_order_depends_on_the_seed_and_the_epoch_alone():
    runs = []
    for prefetch, batch_size in ((0, 3), (2, 3), (0, 1)):
        rt.random.seed(prefetch)
        loader = loader_of(prefetch=prefetch, size=batch_size)
        state = rt.random.get_state()
        runs.append([sum(ids(loader), []) for _ in range(3)])
        assert rt.random.get_state() == state
    assert runs[0] == runs[1] == runs[2]
    assert len({tuple(order) for order in runs[0]}) == 3
    key = rt.random.fold_in(rt.random.key(5), 1)
    assert runs[0][1] == rt.random.permutation(10, key=key, device=CPU).tolist()
    assert runs[0][1] == [8, 0, 5, 4, 1, 3, 6, 2, 7, 9]  # on every machine
    assert runs[0][0] != sum(ids(loader_of(seed=6)), [])


def test_without_shuffle_the_order_is_that_of_the_data():
    loader = loader_of(shuffle=False)
    assert [ids(loader) for _ in range(2)] == [[[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]] * 2


@given(n=st.integers(1, 20), size=st.integers(1, 25), drop=st.booleans(), shuffle=st.booleans(), prefetch=st.integers(0, 3))
def test_lengths_and_last_batches(n, size, drop, shuffle, prefetch):
    how = {"drop_last": drop, "shuffle": shuffle, "prefetch": prefetch}
    if drop and size > n:
        with pytest.raises(ValueError, match=f"{n} items make no batch of {size}; give drop_last=False"):
            loader_of(n, size, **how)
        return
    loader = loader_of(n, size, **how)
    found = ids(loader)
    assert len(found) == len(loader) == (n // size if drop else -(-n // size))
    assert [len(b) for b in found] == [size] * (n // size) + ([n % size] if n % size and not drop else [])
    flat = sum(found, [])
    assert len(set(flat)) == len(flat) and set(flat) <= set(range(n))


# errors


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_reaches_the_consumer_with_its_traceback_and_the_batch_is_next_again(prefetch):
    trouble = [True]

    def fragile(x, y):
        if y[0] == 6 and trouble:
            raise KeyError("row six")
        return x, y

    loader = loader_of(shuffle=False, transform=fragile, prefetch=prefetch)
    received = []
    with pytest.raises(KeyError, match="row six") as caught:
        for _, y in loader:
            received.append(y.tolist())
    assert received == [[0, 1, 2], [3, 4, 5]] and loader.batch == 2
    assert "fragile" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert not threads()
    trouble.clear()
    assert ids(loader) == [[6, 7, 8], [9]]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_StopIteration_in_a_transform_does_not_end_the_epoch(prefetch):
    loader = loader_of(transform=lambda x, y: next(iter(())), prefetch=prefetch)
    batches = iter(loader)
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        next(batches)
    assert (loader.epoch, loader.batch) == (0, 0) and list(batches) == [] and not threads()


@pytest.mark.parametrize(
    ("how", "field"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.0}, "batch_size"),
        ({"batch_size": True}, "batch_size"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"seed": None}, "seed"),
        ({"prefetch": -1}, "prefetch"),
        ({"shuffle": 1}, "shuffle"),
        ({"drop_last": None}, "drop_last"),
        ({"transform": "float32"}, "transform"),
    ],
)
def test_a_wrong_setting_is_refused(how, field):
    with pytest.raises(ValueError, match=f"DataLoader: {field}=.* is not allowed; give "):
        DataLoader(data(), **{"batch_size": 3, "device": CPU, **how})


def test_what_is_no_dataset_is_refused():
    with pytest.raises(ValueError, match="the dataset is empty"):
        loader_of(0)
    with pytest.raises(TypeError, match="a dataset has a length, and gives a batch .*; got generator"):
        DataLoader((i for i in range(3)), 1, device=CPU)
    with pytest.raises(TypeError, match=r"expected NumPy arrays, got list; ArrayDataset\(np.asarray"):
        ArrayDataset([1, 2])
    with pytest.raises(TypeError, match="got Tensor"):
        ArrayDataset(rt.ones(2, device=CPU))
    with pytest.raises(ValueError, match=r"one length along the first axis, got shapes \[\(3,\), \(2,\)\]"):
        ArrayDataset(np.ones(3), np.ones(2))
    for arrays in ((), (np.array(1.0),)):
        with pytest.raises(ValueError, match="one length along the first axis"):
            ArrayDataset(*arrays)
    with pytest.raises(TypeError, match="not supported"):
        list(DataLoader(ArrayDataset(np.array(["a", "b"])), 1, device=CPU))


# arrays, dtypes and transforms


def test_arrays_keep_the_dtype_they_came_with(device):
    dtypes = ["float64", "float32", "float16", "int64", "int32", "int8", "uint8", "uint16", "bool", ml_dtypes.bfloat16, ">f4"]
    arrays = [np.arange(4).astype(dtype) for dtype in dtypes]
    for batch in DataLoader(ArrayDataset(*arrays), 3, shuffle=False, device=device):
        assert [x.dtype for x in batch] == [np.dtype(dtype).newbyteorder("=") for dtype in dtypes]
        assert all(x.astype(rt.float64).tolist() in ([0, 1, 2], [0, 1, 1], [3], [1]) for x in batch)


def test_a_memory_map_is_read_batch_by_batch(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(12, dtype=np.float32).reshape(6, 2))
    array = np.load(tmp_path / "x.npy", mmap_mode="r")
    for size in (1, 4):
        batches = [x for (x,) in DataLoader(ArrayDataset(array), size, shuffle=False, device=CPU)]
        assert np.array_equal(np.concatenate([x.numpy() for x in batches]), array)
        assert all(type(x._data) is np.ndarray and not np.shares_memory(x._data, array) for x in batches)


def test_batches_do_not_share_memory_with_the_data():
    array = np.arange(4.0)
    for (x,) in DataLoader(ArrayDataset(array), 2, shuffle=False, device=CPU, prefetch=0):
        assert not np.shares_memory(x.numpy(), array) and not x.is_require_grad()


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_transform_sees_arrays_and_may_return_any_nest_of_them(prefetch, device):
    pair = collections.namedtuple("pair", "x y")

    def change(x, y):
        assert type(x) is type(y) is np.ndarray
        return {"in": x.astype(np.float32) / 2, "rest": [pair(y, rt.ones((2,), device=CPU))]}

    batch = next(iter(loader_of(shuffle=False, transform=change, prefetch=prefetch, device=device)))
    assert batch["in"].tolist() == [[0, 0.5], [1, 1.5], [2, 2.5]] and batch["in"].dtype == rt.float32
    assert type(batch["rest"][0]) is pair and batch["rest"][0].x.tolist() == [0, 1, 2]
    assert {batch["in"].device, batch["rest"][0].x.device, batch["rest"][0].y.device} == {device}


def test_the_key_of_a_transform_names_the_epoch_and_the_batch():
    keys = []
    loader = loader_of(transform=lambda x, y, *, key: keys.append(key) or (x, y), prefetch=0)
    list(itertools.islice(loader.forever(), 8))
    assert len({k.seed for k in keys}) == 8
    epoch = rt.random.fold_in(rt.random.key(5), 1)
    assert keys[6] == rt.random.fold_in(epoch, 2)


def test_a_dataset_of_ones_own_and_builtin_transforms():
    class Squares:
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return index**2

    loader = DataLoader(Squares(), 2, shuffle=False, device=CPU, transform=np.negative)
    assert [x.tolist() for x in loader] == [[0, -1], [-4, -9], [-16]]


def test_a_recording_device_places_only():
    (x, _) = next(iter(loader_of(device=Autodiff(CPU))))
    assert x.device == CPU and not x.is_require_grad()


def test_what_a_loader_and_its_datasets_say_of_themselves():
    loader = loader_of()
    next(iter(loader))
    assert "at batch 1 of epoch 0" in repr(loader) and "ArrayDataset(float64[10, 2], int64[10])" in repr(loader)
    assert repr(WindowDataset(np.arange(9), 4)) == "WindowDataset(2 windows of 4, stride 4, int64)"


# windows


@given(n=st.integers(2, 40), length=st.integers(1, 10), stride=st.one_of(st.none(), st.integers(1, 12)))
def test_windows_are_shifted_by_one_token(n, length, stride):
    tokens = np.arange(n, dtype=np.uint16)
    if n <= length:
        with pytest.raises(ValueError, match=f"{n} tokens hold no window of {length} .* at least {length + 1} tokens"):
            WindowDataset(tokens, length, stride)
        return
    windows, step = WindowDataset(tokens, length, stride), length if stride is None else stride
    starts = list(range(0, n - length, step))
    assert len(windows) == len(starts)
    x, y = windows[np.arange(len(windows))]
    assert x.shape == y.shape == (len(starts), length) and x.dtype == y.dtype == np.uint16
    assert x.tolist() == [list(range(s, s + length)) for s in starts] and np.array_equal(y, x + 1)
    first, second = windows[0]
    assert first.tolist() == x[0].tolist() and second.tolist() == y[0].tolist()


def test_windows_of_a_memory_map_through_the_loader(tmp_path, device):
    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "tokens")
    tokens = np.memmap(tmp_path / "tokens", dtype=np.uint16, mode="r")
    loader = DataLoader(WindowDataset(tokens, 16, stride=1), 8, seed=1, device=device)
    assert loader.length == 984
    x, y = next(iter(loader))
    assert x.shape == (8, 16) and x.dtype == rt.uint16 and type(x._data) is device.array_type
    assert np.array_equal(y.numpy(), x.numpy() + 1) and len(set(x.numpy()[:, 0].tolist())) == 8
    every = DataLoader(WindowDataset(tokens, 16), 8, device=device)
    seen = np.concatenate([y.numpy().ravel() for _, y in every])
    assert sorted(seen.tolist()) == list(range(1, 993))  # each token but the first is predicted once


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: WindowDataset(np.arange(5), 0), ValueError, "length=0 is not allowed"),
        (lambda: WindowDataset(np.arange(5), 2.0), ValueError, "length=2.0 is not allowed"),
        (lambda: WindowDataset(np.arange(5), 2, 0), ValueError, "stride=0 is not allowed"),
        (lambda: WindowDataset([1, 2, 3], 1), TypeError, "must be a NumPy array, got list"),
        (lambda: WindowDataset(np.array(1), 1), TypeError, "must be a NumPy array"),
        (lambda: WindowDataset(np.arange(5), 2)[np.array([2])], IndexError, "windows are 0 to 1, got 2 to 2"),
        (lambda: WindowDataset(np.arange(5), 2)[-1], IndexError, "windows are 0 to 1, got -1"),
    ],
)
def test_what_windows_refuse(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_windows_have_whole_numbers():
    data = WindowDataset(np.arange(10), 3)
    for wrong in (1.5, np.array([0.0]), slice(0, 2), "a", [True]):
        with pytest.raises(TypeError, match="WindowDataset: windows have whole numbers, got"):
            data[wrong]
    assert data[np.array([], dtype=float)][0].shape == (0, 3)


def test_a_list_of_examples_is_no_dataset():
    for wrong in ([1, 2, 3], (np.ones(2), np.ones(2)), {"x": np.ones(2)}, "text"):
        with pytest.raises(TypeError, match=r"gives a batch for an array of indices; got .*ArrayDataset\(x, y\)"):
            DataLoader(wrong, 2, device=rt.Cpu())


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_transform_that_returns_nothing_is_named(prefetch):
    loader = DataLoader(ArrayDataset(np.arange(4.0)), 2, device=rt.Cpu(), transform=lambda x: None, prefetch=prefetch)
    with pytest.raises(TypeError, match="DataLoader: the transform returned None.*return x, y"):
        next(iter(loader))
    assert (loader.epoch, loader.batch) == (0, 0)
