"""Files: their names, that they appear whole or not at all, and mapping them into memory."""
from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgpack
import numpy as np
import pytest

from ruda_record import BinFileRecorder, RecorderError, files
from ruda_record.encode import Encoder
from ruda_record.settings import FullPrecisionSettings

from ._helpers import PRELUDE, assert_same, entry, forge, header

ROOT = Path(__file__).resolve().parents[2]
posix = pytest.mark.skipif(os.name == "nt", reason="signals and locks of POSIX")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def recorder():
    return BinFileRecorder()


@pytest.mark.parametrize(
    ("given", "file"),
    [
        ("step-100", "step-100.bin"), ("step-100.bin", "step-100.bin"), ("run.v2", "run.v2.bin"),
        ("run.v0.1", "run.v0.1.bin"), ("run.v0.2", "run.v0.2.bin"), ("a.b/c", "a.b/c.bin"), (".hidden", ".hidden.bin"),
        ("x.", "x..bin"), ("x.bin.bin", "x.bin.bin"), ("x.BIN", "x.BIN.bin"), ("bin", "bin.bin"), ("é ü", "é ü.bin"),
        ("checkpoints/step-100", "checkpoints/step-100.bin"), ("...", "....bin"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [str, Path])
def test_CKPT_11_a_suffix_is_appended_once_and_a_dot_is_part_of_the_name(given, file, kind, tmp_path, recorder):
    path = kind(tmp_path / given) if kind is Path else f"{tmp_path}/{given}"
    assert recorder.path(path) == tmp_path / file
    assert recorder.save(given, path) == tmp_path / file and (tmp_path / file).is_file()
    assert recorder.load(path) == recorder.load(tmp_path / file) == given


def test_CKPT_11_two_names_are_two_files(tmp_path, recorder):
    for version in (1, 2):
        recorder.save(version, tmp_path / f"run.v0.{version}")
    assert [recorder.load(tmp_path / f"run.v0.{version}") for version in (1, 2)] == [1, 2]


@pytest.mark.parametrize("given", ["", ".", "..", "/", "a/.."])
def test_a_folder_is_no_name(given, recorder):
    with pytest.raises(RecorderError, match="names a folder, not a record; write for example"):
        recorder.save(1, given)


def test_paths_of_a_wrong_kind(recorder, tmp_path):
    for wrong in (b"x", 3, None):
        with pytest.raises(TypeError):
            recorder.path(wrong)
    with pytest.raises(RecorderError, match="zero character"):
        recorder.load(f"{tmp_path}/a\0b")
    with pytest.raises(RecorderError, match="File name too long"):
        recorder.save(1, tmp_path / ("x" * 300))


def test_what_is_not_a_record_file_is_refused_by_name(tmp_path, recorder):
    (tmp_path / "folder.bin").mkdir()
    (tmp_path / "file").write_text("text")
    (tmp_path / "text.bin").write_text("some text")
    for read in (recorder.load, recorder.verify, lambda path: recorder.load(path, lazy=True)):
        with pytest.raises(RecorderError, match=r"missing\.bin: not found"):
            read(tmp_path / "missing")
        with pytest.raises(RecorderError, match=r"folder\.bin: is a folder, not a record"):
            read(tmp_path / "folder")
        with pytest.raises(RecorderError, match=r"x\.bin: Not a directory"):
            read(tmp_path / "file" / "x")
        with pytest.raises(RecorderError, match=r"text\.bin: not a ruda record: it begins with b'some tex'"):
            read(tmp_path / "text")
    with pytest.raises(RecorderError, match=r"folder\.bin: is a folder"):
        recorder.save(1, tmp_path / "folder")
    with pytest.raises(RecorderError, match=r"x\.bin: Not a directory"):
        recorder.save(1, tmp_path / "file" / "x")
    assert names(tmp_path) == {"folder.bin", "file", "text.bin"}


@posix
def test_a_pipe_is_refused_rather_than_waited_for(tmp_path, recorder):
    os.mkfifo(tmp_path / "pipe.bin")
    with pytest.raises(RecorderError, match="is a device, pipe or socket"):
        recorder.load(tmp_path / "pipe")


@pytest.mark.parametrize("step", ["replace", "fsync", "write", "crc32", "interrupt"])
def test_CKPT_01_the_old_file_survives_a_failure_and_nothing_else_is_left(step, tmp_path, recorder, monkeypatch):
    path = recorder.save({"x": np.arange(1000)}, tmp_path / "a")
    before = path.read_bytes()

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    if step == "write":
        monkeypatch.setattr("ruda_record.recorders.write_record", lambda file, encoded: (file.write(b"half"), full()))
    elif step == "crc32":
        monkeypatch.setattr("ruda_record.format.zlib.crc32", full)
    else:
        monkeypatch.setattr(os, "replace" if step == "interrupt" else step, interrupt if step == "interrupt" else full)
    with pytest.raises(KeyboardInterrupt if step == "interrupt" else RecorderError) as raised:
        recorder.save({"x": np.zeros(2000)}, tmp_path / "a")
    if step != "interrupt":
        assert str(raised.value) == f"{path}: No space left on device"
    assert names(tmp_path) == {"a.bin"} and path.read_bytes() == before


def test_the_order_is_write_sync_replace_sync(tmp_path, recorder, monkeypatch):
    events, fsync, replace = [], os.fsync, os.replace
    target = tmp_path / "new" / "deep" / "a.bin"

    def logged_fsync(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}")) if Path("/proc/self/fd").exists() else None
        events.append(("sync", path.suffix if path and path.suffix else path and path.name))
        assert target.exists() == (len(events) > 2)
        fsync(descriptor)

    def logged_replace(source, to):
        events.append(("replace", Path(to).name))
        assert Path(source).parent == target.parent and Path(source).name.startswith(".a.bin.")
        assert Path(source).stat().st_size == len(recorder_bytes)
        replace(source, to)

    recorder_bytes = recorder.save({"x": np.arange(9)}, tmp_path / "first").read_bytes()
    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(os, "replace", logged_replace)
    recorder.save({"x": np.arange(9)}, target)
    assert target.read_bytes() == recorder_bytes
    assert [event for event, _ in events] == ["sync", "replace", "sync", "sync", "sync"]
    if Path("/proc/self/fd").exists():
        assert [name for _, name in events] == [".tmp", "a.bin", "deep", "new", tmp_path.name]


@posix
def test_CKPT_01_stale_temporaries_of_this_target_are_cleared_and_live_ones_are_not(tmp_path, recorder):
    stale = tmp_path / ".a.bin.0123456789abcdef.tmp"
    others = [tmp_path / name for name in (".b.bin.0123456789abcdef.tmp", ".a.bin.0123.tmp", ".a.bin.tmp", "a.tmp")]
    for path in (stale, *others):
        path.write_bytes(b"half a record")
    live, file = files._create_temporary(tmp_path / "a.bin")  # another save of the same target, under way
    with file:
        recorder.save(1, tmp_path / "a")
        assert names(tmp_path) == {"a.bin", live.name, *(path.name for path in others)}
    recorder.save(2, tmp_path / "a")
    assert names(tmp_path) == {"a.bin", *(path.name for path in others)}
    assert recorder.load(tmp_path / "a") == 2


@posix
def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path, recorder):
    old = os.umask(0o027)
    try:
        assert recorder.save(1, tmp_path / "a").stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(old)


KILLED_AT_A_BYTE = """
import os, resource, signal, sys, numpy as np
from ruda_record import BinFileRecorder
path, recorder = sys.argv[1], BinFileRecorder()
for limit in map(int, sys.argv[2:]):
    if os.fork() == 0:  # in the child, the system kills the write that would pass the limit
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        recorder.save({"version": 2, "x": np.full(250_000, 2.0)}, path)
        os._exit(0)
    status = os.wait()[1]
    assert (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXFSZ), status
    assert recorder.load(path)["version"] == 1
    print(sum(name.endswith(".tmp") for name in os.listdir(os.path.dirname(path))))
"""


def script(code: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, arguments)]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}


@posix
def test_CKPT_01_killed_at_any_byte_the_old_record_stays(tmp_path, recorder):
    path = recorder.save({"version": 1, "x": np.full(250_000, 1.0)}, tmp_path / "a")
    limits = [0, 1, 255, 256, 4096, 300_000, 1_000_000, path.stat().st_size - 1]
    done = subprocess.run(script(KILLED_AT_A_BYTE, path, *limits), env=environment(), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.split() == [b"1"] * len(limits)  # each child left one behind, and cleared the one before
    assert recorder.load(path)["x"][0] == 1
    recorder.save({"version": 3}, path)
    assert names(tmp_path) == {"a.bin"} and recorder.load(path) == {"version": 3}


A_FULL_DISK = """
import os, resource, sys, numpy as np
from ruda_record import BinFileRecorder, RecorderError
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
try:
    BinFileRecorder().save(np.zeros(250_000), sys.argv[1])
except RecorderError as error:
    print(error)
"""


@posix
def test_CKPT_01_a_write_that_the_system_refuses_is_an_error_and_leaves_nothing(tmp_path, recorder):
    path = recorder.save({"version": 1}, tmp_path / "a")
    done = subprocess.run(script(A_FULL_DISK, path), env=environment(), capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{path}: File too large\n" and not done.stderr
    assert names(tmp_path) == {"a.bin"} and recorder.load(path) == {"version": 1}


SAVES_FOREVER = """
import itertools, sys, numpy as np
from ruda_record import BinFileRecorder
for version in itertools.count(1):
    BinFileRecorder().save({"version": version, "x": np.full(200_000, float(version))}, sys.argv[1])
    if version == 1:
        print("saved", flush=True)
"""


@posix
def test_CKPT_01_killed_at_any_moment_some_record_is_whole(tmp_path, recorder):
    rng = np.random.default_rng(3)
    for _ in range(5):
        child = subprocess.Popen(script(SAVES_FOREVER, tmp_path / "a"), env=environment(), stdout=subprocess.PIPE)
        with child:
            assert child.stdout is not None and child.stdout.readline() == b"saved\n"
            time.sleep(rng.uniform(0, 0.03))
            child.send_signal(signal.SIGKILL)
        data = recorder.load(tmp_path / "a")
        assert (data["x"] == data["version"]).all() and data["x"].shape == (200_000,)
    recorder.save({"version": 0}, tmp_path / "a")
    assert names(tmp_path) == {"a.bin"}


def test_many_may_save_the_same_target_at_once(tmp_path, recorder):
    def save(writer):
        for _ in range(20):
            recorder.save({"writer": writer, "x": np.full(5000, writer)}, tmp_path / "a")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(save, range(4)))
    data = recorder.load(tmp_path / "a")
    assert (data["x"] == data["writer"]).all() and names(tmp_path) == {"a.bin"}


def test_a_lazy_load_maps_the_file_and_survives_its_replacement(tmp_path, recorder):
    data = {"x": np.arange(1000.0).reshape(10, 100), "0-d": np.array(7, np.int8), "empty": np.zeros((0, 3)), "t": (1,),
            "last": np.zeros(0)}  # fmt: skip
    recorder.save(data, tmp_path / "a")
    lazy = recorder.load(tmp_path / "a", lazy=True)
    assert_same(lazy, data)
    assert isinstance(lazy["x"].base, np.memmap)
    assert not any(array.flags.writeable for array in lazy.values() if isinstance(array, np.ndarray))
    with pytest.raises(ValueError, match="read-only"):
        lazy["x"][0] = 0
    recorder.save(lazy, tmp_path / "a")  # onto the file that it is mapped from
    assert_same(recorder.load(tmp_path / "a"), data)
    recorder.save({"x": np.zeros(3)}, tmp_path / "a")
    assert_same(lazy, data)
    assert recorder.load(tmp_path / "a")["x"].flags.owndata


def test_offsets_go_beyond_four_gibibytes(tmp_path, recorder):
    big = 5 << 30
    encoded = Encoder([np.broadcast_to(np.int8(1), (big,)), np.arange(3, dtype=np.int8)], FullPrecisionSettings())
    assert [segment.offset for segment, _, _ in encoded.arrays] == [0, big]
    # A file of that size with nothing in it but its two ends takes no space.
    arrays = ["list", entry("int8", [big], 0, big), entry("int8", [3], big, 3)]
    front = forge(header(msgpack.packb(arrays)))
    start = len(front)
    front = forge(header(msgpack.packb(arrays)), length=start + big + 256)
    with open(tmp_path / "big.bin", "wb") as file:
        file.write(front)
        file.seek(start + big)
        file.write(bytes([5, 6, 7]).ljust(256, b"\0"))
    assert PRELUDE.unpack(front[: PRELUDE.size])[3] == (tmp_path / "big.bin").stat().st_size
    first, last = recorder.load(tmp_path / "big", lazy=True)
    assert first.shape == (big,) and first[-1] == 0 and last.tolist() == [5, 6, 7]
