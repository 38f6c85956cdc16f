"""Data in batches: datasets of arrays and of windows, and a loader whose order and position can be recorded.

A dataset has a length, and `dataset[indices]` with an array of indices gives a batch of NumPy arrays. The order of an
epoch depends on the seed and the epoch alone, and is the same on all machines; the position is what the consumer has
received, whatever a thread has fetched ahead. So the seed, the epoch and the count of batches say where training is.
"""
from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import ruda_tensor as rt
from ruda_tensor.devices import resolve_device

from .config import is_whole, require
from .prefetch import Prefetch
from .records import broken, compare


class ArrayDataset:
    """Arrays of one length along their first axis, such as inputs and targets; an item is a tuple of their rows.

    They may be memory maps (`np.load(path, mmap_mode="r")`): only what is asked for is read. They are not copied, and
    rows keep the dtype of their array.

    Errors: TypeError for what is no NumPy array, ValueError for arrays of different lengths or without an axis.

    >>> data = ArrayDataset(np.arange(6.0).reshape(3, 2), np.array([0, 1, 2]))
    >>> len(data), data[np.array([2, 0])]
    (3, (array([[4., 5.], [0., 1.]]), array([2, 0])))
    """

    def __init__(self, *arrays: np.ndarray) -> None:
        for a in arrays:
            if not isinstance(a, np.ndarray):
                raise TypeError(
                    f"ArrayDataset: expected NumPy arrays, got {type(a).__name__}; ArrayDataset(np.asarray(x), np.asarray(y))"
                )
        if not arrays or any(a.ndim == 0 or len(a) != len(arrays[0]) for a in arrays):
            raise ValueError(
                f"ArrayDataset: needs arrays of one length along the first axis, got shapes {[a.shape for a in arrays]}"
            )
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: Any) -> tuple[np.ndarray, ...]:
        return tuple(a[index] for a in self.arrays)

    def __repr__(self) -> str:
        return f"ArrayDataset({', '.join(f'{a.dtype}{list(a.shape)}' for a in self.arrays)})"


class WindowDataset:
    """Windows (x, y) of one long array of tokens, y one token further than x: what a language model learns from.

    Window i has x = tokens[i stride : i stride + length] and y = tokens[i stride + 1 : i stride + length + 1]. With
    `stride` None it is `length`: an epoch predicts every token once (but for the rest at the end). `stride=1` has a
    window at every place. A loader takes them in order, or in a random one with `shuffle`. The array may be a memory
    map, and the windows keep its dtype.

    Errors: TypeError for what is no NumPy array; ValueError where it is shorter than length + 1, or for a length or
    stride below 1; IndexError for a window that is not there.

    >>> data = WindowDataset(np.arange(10), length=4)
    >>> len(data), data[np.array([1])]
    (2, (array([[4, 5, 6, 7]]), array([[5, 6, 7, 8]])))
    """

    def __init__(self, tokens: np.ndarray, length: int, stride: int | None = None) -> None:
        if not isinstance(tokens, np.ndarray) or tokens.ndim == 0:
            raise TypeError(f"WindowDataset: tokens must be a NumPy array, got {type(tokens).__name__}; np.asarray(tokens)")
        stride = length if stride is None else stride
        for name, value in (("length", length), ("stride", stride)):
            require(is_whole(value) and value > 0, "WindowDataset", name, value, "an integer >= 1")
        if len(tokens) <= length:
            raise ValueError(
                f"WindowDataset: {len(tokens)} tokens hold no window of {length} and the token after it; "
                f"give at least {length + 1} tokens, or length={max(len(tokens) - 1, 1)}"
            )
        self.tokens, self.length, self.stride = tokens, int(length), int(stride)

    def __len__(self) -> int:
        return (len(self.tokens) - self.length - 1) // self.stride + 1

    def __getitem__(self, index: Any) -> tuple[np.ndarray, np.ndarray]:
        index = np.asarray(index)
        if index.size and index.dtype.kind not in "iu":
            raise TypeError(f"WindowDataset: windows have whole numbers, got {index.dtype}; windows[np.arange(3)]")
        if index.size and not 0 <= index.min() <= index.max() < len(self):
            raise IndexError(f"WindowDataset: windows are 0 to {len(self) - 1}, got {index.min()} to {index.max()}")
        start = index.astype(np.int64) * self.stride
        windows = np.asarray(self.tokens[start[..., None] + np.arange(self.length + 1)])
        axis = index.ndim
        return windows.take(range(self.length), axis), windows.take(range(1, self.length + 1), axis)

    def __repr__(self) -> str:
        return f"WindowDataset({len(self)} windows of {self.length}, stride {self.stride}, {self.tokens.dtype})"


class DataLoader:
    """Iterates over a dataset in batches of tensors on a device; one `for` over it is what is left of one epoch.

    Settings: `batch_size`; `shuffle` (True): in a new random order each epoch, which depends on `seed` (0) and the
    epoch alone; `drop_last` (False): without the last batch if it is smaller; `device` (the default device);
    `transform` (None); `prefetch` (2): so many batches are fetched ahead in a thread, or none with 0.

    `transform(*batch)` changes a batch of NumPy arrays, in the thread. If it has a parameter `key`, it gets a
    `rt.random.Key` of its seed, epoch and batch: what is drawn from it (`rt.random.normal(shape, key=key)`) is the
    same however often, and wherever, the batch is made. Arrays keep the dtype they have then. An error in dataset or
    transform is raised to the consumer, and the batch that failed is next again.

    `epoch` and `batch` are the position: how many epochs, and batches of this one, have been received. Every iteration
    goes on there, so one that was left by `break` is finished by the next. An epoch is over when the loop asks for a
    batch after its last one. `seek` moves, `to_record` and `load_record` save and restore the position: the batches
    that follow are then the same, bit for bit, with any `prefetch`. Put it into the state of a `TrainingRecord`.
    Beginning an iteration ends an earlier one, and its thread.

    Errors: TypeError for a dataset without length or items; ValueError for wrong settings, and without a batch.

    >>> data = ArrayDataset(np.arange(5, dtype=np.float32), np.arange(5))
    >>> loader = DataLoader(data, 2, shuffle=False, device=rt.Cpu())
    >>> [y.tolist() for x, y in loader], loader.epoch, len(loader)
    ([[0, 1], [2, 3], [4]], 1, 3)

    Saved in the middle of an epoch, and resumed:

    >>> from ruda_autodiff import Autodiff
    >>> from ruda_nn import LinearConfig
    >>> from ruda_optim import GradientsAccumulator, SgdConfig, StepLrSchedulerConfig, TrainingRecord
    >>> def parts():
    ...     model = LinearConfig(2, 1).init(Autodiff(rt.Cpu()))
    ...     return model, SgdConfig().init(), StepLrSchedulerConfig(0.1, 5).init()
    >>> x, y = next(iter(loader))
    >>> state = {"data": loader.to_record(), "random": rt.random.get_state()}
    >>> record = TrainingRecord.capture(*parts(), GradientsAccumulator(), state)
    >>> restored = record.restore(*parts(), rt.Cpu())
    >>> again = DataLoader(data, 2, shuffle=False, device=rt.Cpu())
    >>> again.load_record(restored.state["data"])
    >>> again.epoch, [y.tolist() for x, y in again]
    (1, [[2, 3], [4]])
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        device: Any = None,
        transform: Callable[..., Any] | None = None,
        prefetch: int = 2,
    ) -> None:
        listed = isinstance(dataset, (list, tuple, dict, str))  # which give no batch for an array of indices
        if listed or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise TypeError(
                "DataLoader: a dataset has a length, and gives a batch for an array of indices; got "
                f"{type(dataset).__name__}; DataLoader(ArrayDataset(x, y), 32)"
            )
        for name, value, least in (("batch_size", batch_size, 1), ("prefetch", prefetch, 0), ("seed", seed, 0)):
            require(is_whole(value) and value >= least, "DataLoader", name, value, f"an integer >= {least}")
        require(seed < 2**64, "DataLoader", "seed", seed, "an integer below 2**64")
        for name, value in (("shuffle", shuffle), ("drop_last", drop_last)):
            require(isinstance(value, bool), "DataLoader", name, value, "True or False")
        require(transform is None or callable(transform), "DataLoader", "transform", transform, "a function, or None")
        self.dataset, self.batch_size, self.seed, self.prefetch = dataset, int(batch_size), int(seed), int(prefetch)
        self.shuffle, self.drop_last, self.transform = shuffle, drop_last, transform
        self.device, self.length = resolve_device(device), len(dataset)
        if not len(self):
            few = f"{self.length} items make no batch of {batch_size}; give drop_last=False, or a smaller batch_size"
            raise ValueError(f"DataLoader: {few if self.length else 'the dataset is empty; give it items'}")
        self.epoch = self.batch = 0
        self._keyed = transform is not None and _takes_key(transform)
        self._current: Callable[[], Any] = lambda: None

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return self.length // self.batch_size if self.drop_last else -(-self.length // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        self._end()
        batches = _Batches(self)
        self._current = weakref.ref(batches)
        return batches

    def forever(self) -> Iterator[Any]:
        """Iterate over this epoch and all that follow: `for x, y in itertools.islice(loader.forever(), steps)`."""
        while True:
            yield from self

    def seek(self, epoch: int, batch: int = 0) -> None:
        """Go on at a batch of an epoch, both counted from 0; ends the iteration that runs."""
        require(is_whole(epoch) and epoch >= 0, "DataLoader.seek", "epoch", epoch, "an integer >= 0")
        good = is_whole(batch) and 0 <= batch <= len(self)
        require(good, "DataLoader.seek", "batch", batch, f"an integer from 0 to {len(self)}")
        self._end()
        self.epoch, self.batch = int(epoch), int(batch)

    def to_record(self) -> dict[str, Any]:
        """Return the position and what decides the order, as plain data."""
        return {"config": self._describe(), "epoch": self.epoch, "batch": self.batch}

    def load_record(self, record: dict[str, Any]) -> None:
        """Go on at the position of a record; RecordMismatch with both sides, and no change, if the order was another."""
        if not isinstance(record, dict) or set(record) != {"config", "epoch", "batch"}:
            broken("its data position should hold config, epoch and batch")
        compare(record["config"], self._describe(), "data loader")
        epoch, batch = record["epoch"], record["batch"]
        if not is_whole(epoch) or not is_whole(batch) or epoch < 0 or not 0 <= batch <= len(self):
            broken(f"its data position is batch {batch!r} of epoch {epoch!r}, and an epoch has {len(self)} batches")
        self.seek(epoch, batch)

    def _describe(self) -> dict[str, Any]:
        return {
            "length": self.length, "batch_size": self.batch_size, "seed": self.seed, "shuffle": self.shuffle,
            "drop_last": self.drop_last,
        }  # fmt: skip

    def _end(self) -> None:
        running = self._current()
        if running is not None:
            running.end(
                RuntimeError(
                    "DataLoader: this iteration was ended by a later one, by seek, or by load_record; for two at a time "
                    "make two loaders: DataLoader(dataset, batch_size)"
                )
            )

    def _order(self, key: rt.random.Key) -> np.ndarray | None:
        """The items of an epoch in their order, or None for the order of the dataset."""
        return rt.random.permutation(self.length, key=key, device=rt.Cpu()).numpy() if self.shuffle else None

    def _make(self, key: rt.random.Key, order: np.ndarray | None, number: int) -> Any:
        """One batch as tensors on the host."""
        start, stop = number * self.batch_size, min((number + 1) * self.batch_size, self.length)
        parts = self.dataset[np.arange(start, stop) if order is None else order[start:stop]]
        if self.transform is not None:
            how = {"key": rt.random.fold_in(key, number)} if self._keyed else {}
            parts = self.transform(*parts, **how) if isinstance(parts, tuple) else self.transform(parts, **how)
            if parts is None:
                raise TypeError("DataLoader: the transform returned None; it returns the batch: return x, y")
        return _each(lambda x: x if isinstance(x, rt.Tensor) else rt.asarray(x, device=rt.Cpu()), parts)

    def __repr__(self) -> str:
        return f"DataLoader({self.dataset!r}, {self._describe()}, at batch {self.batch} of epoch {self.epoch})"


def _takes_key(function: Callable) -> bool:
    try:
        found = inspect.signature(function).parameters.get("key")
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False
    return found is not None and found.kind in (found.KEYWORD_ONLY, found.POSITIONAL_OR_KEYWORD)


def _each(function: Callable[[Any], Any], value: Any) -> Any:
    """The function of each array in a batch: one array, or a tuple, list or dict of them."""
    if isinstance(value, (tuple, list)):
        parts = [_each(function, v) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {name: _each(function, v) for name, v in value.items()}
    return function(value)


class _Batches:
    """One iteration; its thread ends with it. `over` is None while it runs, and then what asking for more raises."""

    def __init__(self, loader: DataLoader) -> None:
        key = rt.random.fold_in(rt.random.key(loader.seed), loader.epoch)
        steps = range(loader.batch, len(loader))
        self.loader, self.over = loader, None
        self.make = functools.partial(loader._make, key, loader._order(key) if steps else None)
        self.thread = Prefetch(self.make, steps, loader.prefetch) if loader.prefetch and steps else None
        if self.thread:
            weakref.finalize(self, self.thread.stop)

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        loader = self.loader
        if self.over:
            raise self.over
        if loader.batch == len(loader):
            self.end(StopIteration())
            loader.epoch, loader.batch = loader.epoch + 1, 0
            raise StopIteration
        try:
            parts = self.thread.next() if self.thread else self.make(loader.batch)
            parts = _each(lambda x: x.to_device(loader.device), parts)
        except StopIteration as error:  # it would end the loop as if the epoch were over
            self.end(StopIteration())
            raise RuntimeError("DataLoader: the dataset or the transform raised StopIteration") from error
        except BaseException:
            self.end(StopIteration())
            raise
        loader.batch += 1
        return parts

    def end(self, over: Exception) -> None:
        self.over = self.over or over
        if self.thread:
            self.thread.stop(wait=True)
