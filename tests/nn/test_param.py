"""Parameters: identity, tracking, freezing."""
from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import Autodiff
from ruda_nn import Param


def test_a_parameter_is_a_tensor_with_an_identity_and_a_leaf(device):
    x = rt.tensor([1.0, 2.0], device=device)
    p, q = Param(x), Param(x)
    assert isinstance(p, rt.Tensor) and p.is_require_grad() and p.trainable and p.id != q.id and len(p.id) == 16
    assert (p * q).sum().backward()[p].tolist() == [1.0, 2.0]
    assert {p: 1}[p] == 1 and (p == q).tolist() == [True, True]
    assert type(p * 2.0) is rt.Tensor and type(p.detach()) is rt.Tensor


def test_where_it_is_made_decides_the_tracking(device):
    x = rt.tensor([1.0], device=device)
    assert Param(x, device=Autodiff(device)).is_require_grad() and not Param(x, device=device).is_require_grad()
    assert Param(x, device=Autodiff(device, checkpointing="balanced")).strategy == "balanced"
    assert not Param(x, trainable=False).is_require_grad()
    assert Param(x.require_grad() * 2.0).is_require_grad()  # a leaf, cut off from what made its value
    assert Param(x.require_grad(), device=device).device == device


def test_integers_and_bools_are_never_trained():
    for values in ([1, 2], [True, False]):
        p = Param(rt.tensor(values))
        assert not p.trainable and not p.is_require_grad()
        with pytest.raises(TypeError, match=r"no gradient.*astype"):
            p.require_grad()
        assert not p.set_require_grad(False).trainable


def test_freezing_and_thawing_keep_id_and_numbers():
    p = Param(rt.tensor([1.0]))
    frozen = p.set_require_grad(False)
    thawed = frozen.require_grad()
    assert (frozen.id, frozen.trainable, frozen.is_require_grad()) == (p.id, False, False)
    assert (thawed.id, thawed.trainable, thawed.is_require_grad()) == (p.id, True, True) and isinstance(thawed, Param)
    assert thawed._data is p._data and p.trainable


@pytest.mark.parametrize("values", [1.5, [1.0, 2.0], [[1.0]]])
def test_copies(values, device):
    p = Param(rt.tensor(values, dtype=rt.bfloat16, device=device), device=Autodiff(device, checkpointing="balanced"))
    for q in (p.copy(), copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
        assert (q.id, q.trainable, q.strategy, q.device) == (p.id, True, "balanced", device)
        assert (q.dtype, q.shape) == (rt.bfloat16, p.shape)
        assert q.is_require_grad() and q._data is not p._data and q.numpy().tobytes() == p.numpy().tobytes()
    assert copy.copy(p) is p and p.like(p._data, tracked=False).id == p.id
    assert not pickle.loads(pickle.dumps(p.like(p._data, tracked=False))).is_require_grad()


def test_two_references_in_one_pickle_are_one_parameter():
    p = Param(rt.tensor([1.0]))
    a, b = pickle.loads(pickle.dumps([p, p]))
    assert a is b


def test_wrong_arguments():
    with pytest.raises(TypeError, match=r"Param\(rt\.tensor\(values\)\)"):
        Param([1.0])
    for bad in ("", 3):
        with pytest.raises(TypeError, match="id is a string"):
            Param(rt.tensor([1.0]), id=bad)
    assert Param(rt.tensor([1.0]), id="mine").id == "mine"


def test_repr_shows_identity_and_values():
    p = Param(rt.tensor([1.0, 2.0]), id="mine")
    assert repr(p).startswith("Param(mine, Tensor(") and "float32" in repr(p)
    p.consume()
    assert repr(p) == "Param(mine, consumed)"


def test_the_tensor_it_was_made_of_is_not_its_memory_to_change():
    from ruda_nn import Module
    from ruda_optim import GradientsParams, SgdConfig

    class One(Module):
        x: Param

    for x in (rt.tensor([1.0, 2.0]), rt.tensor([[1.0, 2.0]])[0], rt.from_dlpack(np.array([1.0, 2.0], np.float32))):
        model = One(Param(x))
        SgdConfig().init().step(1.0, model, GradientsParams({model.x: rt.ones((2,))}))
        assert x.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("dtype", [rt.float16, rt.bfloat16, rt.float32, rt.float64], ids=str)
def test_TAPE_05_no_buffer_of_pickle_reaches_the_memory_of_a_parameter(dtype):
    p, buffers = Param(rt.tensor([2.0, 3.0], dtype=dtype, device=rt.Cpu())), []
    data = pickle.dumps(p, protocol=5, buffer_callback=buffers.append)
    assert all(b.raw().readonly for b in buffers)
    own = [bytearray(b) for b in buffers]
    again, near = pickle.loads(data, buffers=own), pickle.loads(data, buffers=buffers)
    for b in own:
        b[:] = bytes(len(b))
    assert again.tolist() == [2, 3] and again.id == p.id and again.is_require_grad()
    assert not np.shares_memory(near._data, p._data), "an update in place of one would change the other"
    assert again.dtype is dtype, "hot paths compare dtypes by identity"
    assert pickle.loads(pickle.dumps(p)).dtype is dtype
