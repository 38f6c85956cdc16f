"""Recording what a function does on a GPU as one CUDA graph, and launching it again with new numbers.

A graph repeats its launches with the arguments that they had. What must be new each time is read from device memory:
a `slot` is a few bytes there, and the function that says what they are now runs before every launch, after the `tick`s
that were noted before it (a schedule moves on, an optimizer counts). Nothing else that Python does is repeated.

Memory that is taken inside comes from a pool of the recording's own. What is freed there is used again there, in the
order of the recorded launches, and by nobody else: the graph writes to it at every launch.
"""
from __future__ import annotations

import contextlib
import ctypes
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import backend
from ..recording import CaptureError, here

_SLOT, _MOST_SLOTS = 64, 4096  # bytes each; how many
_HOST_TO_DEVICE, _DEVICE_TO_DEVICE = 1, 3  # cudaMemcpyKind


class Recording:
    """A CUDA graph: empty, then recorded by `with recording.capturing(): ...`, then launched as often as one likes."""

    def __init__(self, device: int) -> None:
        self.cp = backend.cupy()
        self.device = device
        with backend.use_device(device):
            self.stream = self.cp.cuda.Stream(non_blocking=True)
            self.beside = self.cp.cuda.Stream(non_blocking=True)  # is never captured
            self.pool = self.cp.cuda.MemoryPool()
            with self.cp.cuda.using_allocator(self.pool.malloc):
                self.values: Any = self.cp.zeros(_SLOT * _MOST_SLOTS, np.uint8)
            self.cp.cuda.get_current_stream().synchronize()  # the zeros come before what other streams write
        self.host = ctypes.create_string_buffer(_SLOT * _MOST_SLOTS)
        # Ticks, and the writing of slots, in their order, each with what takes it back.
        self.steps: list[tuple[Callable[[], None], Callable[[], None] | None]] = []
        self.undo: list[Callable[[], None]] = []  # what else takes back a capture that fails
        self.slots = 0
        self.watched: list[Callable[[], int]] = []  # looks at what the step changes: FINE, SHARED or GONE
        self.held: list[Any] = []  # what must live as long as the graph, such as the workspace of its products
        self.graph: Any = None
        self.nodes = 0
        self._ready = False  # the numbers of the next launch stand in `host`

    @contextlib.contextmanager
    def capturing(self) -> Iterator[Recording]:
        """Record what happens inside in this thread. Where it raises, nothing was run and the recording is of no use."""
        if here.recording is not None:
            raise CaptureError("a captured step cannot record another one: call the inner function by itself")
        if self.graph is not None:
            raise CaptureError("a recording is made once; make another one")
        with backend.use_device(self.device):
            # Work queued so far made the arrays that the graph reads; CuPy orders nothing between streams.
            self.cp.cuda.get_current_stream().synchronize()
            with self.stream, self.cp.cuda.using_allocator(self.pool.malloc):
                # Relaxed: the pool may ask the driver for memory, and a kernel may be loaded, while this thread records.
                self.stream.begin_capture(mode=self.cp.cuda.runtime.streamCaptureModeRelaxed)
                here.recording = self
                try:
                    yield self
                    self.graph = self.stream.end_capture()
                except BaseException:
                    self._abandon()
                    raise
                finally:
                    here.recording = None
            self.undo.clear()
            self.nodes = _count_nodes(self.graph)
            self._ready = True

    def _abandon(self) -> None:
        """End a capture that failed: the stream is free again, and what counts replays stands where it was."""
        with contextlib.suppress(Exception):
            self.stream.end_capture()
        for undo in reversed(self.undo):
            undo()
        self.undo.clear()
        self._take_back(len(self.steps))

    def _take_back(self, count: int) -> None:
        """Take back the first steps, the last of them first."""
        for _, undo in reversed(self.steps[:count]):
            if undo is not None:
                undo()

    def tick(self, f: Callable[[], None], undo: Callable[[], None] | None = None) -> None:
        """Call f now and before every later launch; `undo` takes one call back."""
        f()
        self.steps.append((f, undo))

    def slot(self, layout: str, values: Callable[[], tuple]) -> Any:
        """Device memory, of bytes, that holds values() in a layout of the module struct at every launch."""
        size = struct.calcsize(layout)
        if self.slots == _MOST_SLOTS or size > _SLOT:
            raise CaptureError(f"a captured step may have {_MOST_SLOTS} changing numbers of at most {_SLOT} bytes each")
        start = _SLOT * self.slots
        pack = struct.Struct(layout).pack_into

        def write() -> None:
            pack(self.host, start, *values())

        self.slots += 1
        write()
        self.steps.append((write, None))
        return self.values[start : start + _SLOT]

    def constant(self, array: np.ndarray) -> Any:
        """A host array on the device, brought there beside the capture, which may copy nothing from the host; it stays.

        Its memory is the common pool's, not the graph's, which would write to it again at every launch.
        """
        common = self.cp.get_default_memory_pool().malloc
        with backend.use_device(self.device), self.beside, self.cp.cuda.using_allocator(common):
            out = self.cp.asarray(array)
            self.beside.synchronize()
        self.held.append(out)
        return out

    def launch(self) -> None:
        """Run the graph in the device's current stream, with the numbers of now. Where it raises, nothing has moved on."""
        done = len(self.steps) if self._ready else 0
        try:
            for step, _ in self.steps[done:]:
                step()
                done += 1
            self._ready = False
            self._start()
        except BaseException:
            self._ready = False
            self._take_back(done)
            raise

    def _start(self) -> None:
        if self.slots:  # the driver copies so few bytes before it returns, so `host` is free at once
            stream = self.cp.cuda.get_current_stream().ptr
            size = _SLOT * self.slots
            self.cp.cuda.runtime.memcpyAsync(self.values.data.ptr, ctypes.addressof(self.host), size, _HOST_TO_DEVICE, stream)
        self.graph.launch()

    def copy(self, to: Any, array: Any) -> None:
        """Queue a copy of an array over another of its shape and dtype: by the driver alone where both are in row-major order."""
        if to.flags.c_contiguous and array.flags.c_contiguous:
            stream = self.cp.cuda.get_current_stream().ptr
            self.cp.cuda.runtime.memcpyAsync(to.data.ptr, array.data.ptr, to.nbytes, _DEVICE_TO_DEVICE, stream)
        else:
            self.cp.copyto(to, array)

    @property
    def bytes(self) -> int:
        """Device memory that the recording holds."""
        return self.pool.total_bytes() + sum(getattr(held, "nbytes", 0) for held in self.held)

    def close(self) -> None:
        """Let go of the graph and of its memory, once what was launched is done."""
        if self.graph is not None:
            backend.synchronize(self.device)
        self.graph, self.values, self.held, self.steps, self.watched = None, None, [], [], []


def _count_nodes(graph: Any) -> int:
    """How many launches and copies a graph holds; 0 where CuPy does not show its handle."""
    handle = getattr(graph, "graph", None)
    if handle is None:
        return 0
    count = ctypes.c_size_t(0)
    ctypes.CDLL("libcuda.so.1").cuGraphGetNodes(ctypes.c_void_p(int(handle)), None, ctypes.byref(count))
    return count.value
