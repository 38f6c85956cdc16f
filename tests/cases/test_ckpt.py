"""Checkpoints of whole trainings, through every recorder: what a user saves and what comes back."""
from __future__ import annotations

import copy
import io
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import LinearConfig, Module, Param, load_module, save_module
from ruda_optim import AdamConfig, GradientsAccumulator, GradientsParams, StepLrSchedulerConfig, TrainingRecord
from ruda_record import (
    BinFileRecorder,
    BinGzFileRecorder,
    FullPrecisionSettings,
    HalfPrecisionSettings,
    JsonGzFileRecorder,
    NamedMpkFileRecorder,
    NamedMpkGzFileRecorder,
    PrettyJsonFileRecorder,
    RecorderError,
)
from ruda_record.encode import Encoder
from ruda_record.layout import Segment

ROOT = Path(__file__).resolve().parents[2]
KINDS = [BinFileRecorder, BinGzFileRecorder, NamedMpkFileRecorder, NamedMpkGzFileRecorder, PrettyJsonFileRecorder,
         JsonGzFileRecorder]  # fmt: skip
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.suffix)


def parts(device):
    model = LinearConfig(4, 3).init(device)
    return model, AdamConfig().init(), StepLrSchedulerConfig(0.1, 5).init()


def trained(device, steps=2):
    model, optimizer, scheduler = parts(device)
    for step in range(steps):
        x = rt.tensor(np.random.default_rng(step).normal(size=(5, 4)).astype(np.float32), device=device)
        gradients = GradientsParams.from_grads(model(x).square().mean().backward(), model)
        model = optimizer.step(scheduler.step(), model, gradients)
    return model, optimizer, scheduler


def capture(device, state=None):
    return TrainingRecord.capture(*trained(device), GradientsAccumulator(), state)


def bits(model) -> list[bytes]:
    return [p.numpy().tobytes() for p in model.params()]


KILLED = """
import sys, itertools, numpy as np
import ruda_record
recorder = getattr(ruda_record, sys.argv[1])()
for version in itertools.count(2):
    recorder.save({"version": version, "x": np.full(30_000, float(version))}, sys.argv[2])
    if version == 2:
        print("saved", flush=True)
"""


@kinds
@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_CKPT_01_a_kill_leaves_one_whole_version(kind, tmp_path):
    path = kind().save({"version": 1, "x": np.ones(30_000)}, tmp_path / "a")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILLED, kind.__name__, str(path)]
    child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None and child.stdout.readline() == b"saved\n"
        child.send_signal(signal.SIGKILL)
    data = kind().load(path)
    assert data["version"] >= 2 and (data["x"] == data["version"]).all()
    (tmp_path / f".a{kind.suffix}.0123456789abcdef.tmp").write_bytes(b"half a record")
    kind().save({"version": 0}, path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name] and kind().load(path) == {"version": 0}


@kinds
def test_CKPT_02_a_cut_record_is_an_error_and_changes_no_live_training(kind, tmp_path):
    device = Autodiff(rt.Cpu())
    path = capture(device).save(kind(), tmp_path / "a")
    good, (model, optimizer, scheduler) = path.read_bytes(), trained(device, 1)
    before, states = bits(model), copy.deepcopy(optimizer.to_record(model))
    for cut in [*(len(good) * k // 16 for k in range(16)), len(good) - 2]:
        path.write_bytes(good[:cut])
        with pytest.raises(RecorderError, match=path.name):
            TrainingRecord.load(kind(), path).restore(model, optimizer, scheduler)
    path.write_bytes(good + b"x")
    with pytest.raises(RecorderError, match="too long"):
        TrainingRecord.load(kind(), path).restore(model, optimizer, scheduler)
    assert bits(model) == before
    np.testing.assert_equal(optimizer.to_record(model), states)
    path.write_bytes(good)
    assert bits(TrainingRecord.load(kind(), path).restore(*parts(device)).model) != before


@kinds
def test_CKPT_03_a_shape_that_disagrees_with_its_elements_is_refused_by_name(kind, tmp_path):
    """Patched in what is written, before the checksums are made: the reader has to see for itself."""
    class Lying(Encoder):
        def __init__(self, data):
            super().__init__(data, FullPrecisionSettings())
            segment, array, at = self.arrays[0]
            self.arrays[0] = Segment(segment.place, segment.dtype, (3, 5), segment.offset, 40), array, at

    file = io.BytesIO()
    encoded = Lying({"w": np.zeros(10, np.float32)})
    if kind in (BinFileRecorder, BinGzFileRecorder):  # there the header was made with the arrays
        at = encoded.header.index(b"\x91\x0a")  # the shape [10], which becomes [9]
        encoded.header[at + 1] = 9
    kind()._write(file, encoded)
    (tmp_path / f"a{kind.suffix}").write_bytes(file.getvalue())
    with pytest.raises(RecorderError, match="'/w'.*(needs 36 bytes|are 60 bytes|has 15 elements, found 10)"):
        kind().load(tmp_path / "a")


def test_CKPT_04_nothing_in_a_record_is_ever_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "run"),)

    for kind in KINDS:
        (tmp_path / f"a{kind.suffix}").write_bytes(pickle.dumps({"w": Evil()}))
        with pytest.raises(RecorderError):
            kind().load(tmp_path / "a")
        with pytest.raises(RecorderError, match="not object"):
            kind().save({"w": np.array([Evil()])}, tmp_path / "b")
    assert not (tmp_path / "run").exists() and not list(tmp_path.glob("b*"))


class Model(Module):
    weight: Param


@kinds
def test_CKPT_05_weights_of_any_strides_come_back_equal_and_in_c_order(kind, device, tmp_path):
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    for given in (np.asfortranarray(x), x[:, ::2], x[::-1], x.T, np.broadcast_to(x[0], (3, 6))):
        weight = rt.tensor(x, device=device)
        views = {"fortran": weight, "t": weight.T}
        for tensor in (rt.tensor(given, device=device), *views.values()):
            model = Model(weight=Param(tensor))
            save_module(model, kind(), tmp_path / "a")
            loaded = load_module(Model(weight=Param(rt.zeros(tensor.shape, device=device))), kind(), tmp_path / "a")
            assert (loaded.weight.numpy() == tensor.numpy()).all()
        got = kind().load(kind().save({"x": given}, tmp_path / "b"))["x"]
        assert (got == given).all() and got.flags.c_contiguous
    assert kind().load(kind().save(np.asfortranarray(x[:2, :3]), tmp_path / "b")).tolist() == [[0, 1, 2], [6, 7, 8]]


@kinds
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int64, np.bool_], ids=str)
def test_CKPT_07_degenerate_records_keep_shape_and_dtype(kind, dtype, tmp_path):
    for data in ({}, {"meta": "x"}, {"": {}}, {"é\n" * 5000: np.ones((), dtype)}, []):
        got = kind().load(kind().save(data, tmp_path / "a"))
        assert got == data and type(got) is type(data)
    for shape in [(), (0,), (0, 3), (1, 0, 2)]:
        got = kind().load(kind().save({"": np.ones(shape, dtype)}, tmp_path / "a"))[""]
        assert type(got) is np.ndarray and got.shape == shape and got.dtype == dtype


@kinds
def test_CKPT_11_names_with_dots_are_different_trainings(kind, tmp_path):
    device = rt.Cpu()
    names = ["run.v0.1", "run.v0.2", "a.b/c", ".hidden", "x.", "step-100"]
    files = {capture(Autodiff(device), name).save(kind(), str(tmp_path / name)) for name in names}
    assert files == {tmp_path / f"{name}{kind.suffix}" for name in names}
    for name in names:
        for path in (str(tmp_path / name), tmp_path / f"{name}{kind.suffix}"):
            assert TrainingRecord.load(kind(), path).restore(*parts(device)).state == name


class TiedModel(Module):
    embedding: Param
    head: Param

    def forward(self, x):
        return rt.matmul(rt.matmul(x, self.embedding), rt.matrix_transpose(self.head))


def tied(device):
    shared = Param(rt.ones((3, 2), device=rt.Cpu()), device=device)
    return TiedModel(embedding=shared, head=shared)


@kinds
def test_CKPT_12_tied_weights_stay_one_parameter_with_one_copy_and_one_state(kind, tmp_path):
    device = Autodiff(rt.Cpu())

    def step(model, optimizer):
        loss = model(rt.ones((1, 3), device=rt.Cpu())).square().sum()
        return optimizer.step(0.1, model, GradientsParams.from_grads(loss.backward(), model))

    def states(model, optimizer):
        return len(optimizer.to_record(model)["states"])

    optimizer, scheduler = AdamConfig().init(), StepLrSchedulerConfig(0.1, 5).init()
    model = step(tied(device), optimizer)
    path = TrainingRecord.capture(model, optimizer, scheduler, GradientsAccumulator()).save(kind(), tmp_path / "a")
    assert len(kind().load(path)["model"]["params"]) == 1
    fresh = AdamConfig().init(), StepLrSchedulerConfig(0.1, 5).init()
    restored = TrainingRecord.load(kind(), path).restore(copy.deepcopy(tied(device)), *fresh)
    again = restored.model
    assert again.embedding is again.head and bits(again) == bits(model)
    assert states(again, restored.optimizer) == states(model, optimizer) == 1
    moved, continued = step(again, restored.optimizer), step(model, optimizer)
    assert moved.embedding is moved.head and bits(moved) == bits(continued)


@kinds
def test_contract_42_and_a_full_recorder_continues_bit_for_bit_while_a_half_one_does_not(kind, tmp_path):
    device = Autodiff(rt.Cpu())
    model, _, _ = trained(device)
    record = capture(device, {"seen": 2**40, "mean": np.float64(0.1)})
    for options, same in ((FullPrecisionSettings, True), (HalfPrecisionSettings, False)):
        restored = TrainingRecord.load(kind(), record.save(kind(options), tmp_path / "a")).restore(*parts(device))
        value = [entry["value"].astype(np.float32).tobytes() for entry in record.data["model"]["params"]]
        assert (bits(restored.model) == value) is same and restored.model.weight.dtype == model.weight.dtype
        assert restored.state == {"seen": 2**40, "mean": np.float64(0.1)}  # integers and scalars are never narrowed
