"""Transforms against closed forms, finite structure and each other."""
from __future__ import annotations

import numpy as np
import pytest

import ruda_tensor as rt
from ruda_autodiff import (
    HigherDerivativeUnsupported,
    grad,
    hessian,
    hvp,
    jacobian,
    record,
    tensors_of,
    value_and_grad,
    vjp,
)  # fmt: skip


def t(values, device=None):
    return rt.tensor(np.asarray(values, np.float64), device=device or rt.Cpu())


def test_grad_of_several_arguments_and_structures(device):
    x, y = t([1.0, 2.0], device), t([3.0, 4.0], device)
    gx, gy = grad(lambda a, b: (a * a * b).sum(), argnums=(0, 1))(x, y)
    assert gx.numpy().tolist() == [6.0, 16.0] and gy.numpy().tolist() == [1.0, 4.0]
    tree = grad(lambda p: (p["w"] * p["list"][0]).sum() + p["n"])({"w": x, "list": [y, x], "n": 2.0})
    assert tree["w"].numpy().tolist() == [3.0, 4.0] and tree["list"][1].numpy().tolist() == [0.0, 0.0] and tree["n"] == 2.0


def test_grad_negative_argnum_and_identity():
    x, y = t([1.0]), t([5.0])
    assert grad(lambda a, b: (a * b).sum(), argnums=-1)(x, y).item() == 1.0
    assert grad(lambda a, b: a)(t(2.0), t(3.0)).item() == 1.0
    assert grad(lambda a, b: b, argnums=(0, 1))(t(2.0), t(3.0))[1].item() == 1.0
    assert grad(lambda a: t(3.0))(t(2.0)).item() == 0.0


def test_value_is_bare_outside_and_tracked_inside():
    x = t([1.0, 2.0])
    value, g = value_and_grad(lambda a: (a * a).sum())(x)
    assert not value.is_require_grad() and not g.is_require_grad()
    tracked = x.require_grad()
    penalty = grad(lambda a: (a * a * a).sum())(tracked).sum()
    assert penalty.backward()[tracked].numpy().tolist() == [6.0, 12.0]


@pytest.mark.parametrize("depth, expected", [(1, 4 * 0.3**3), (2, 12 * 0.3**2), (3, 24 * 0.3), (4, 24.0), (5, 0.0)])
def test_any_order(depth, expected):
    f = lambda x: x * x * x * x  # noqa: E731
    for _ in range(depth):
        f = grad(f)
    np.testing.assert_allclose(f(t(0.3)).item(), expected, atol=1e-12)


def test_hessian_jacobian_and_products_agree(rng):
    a = t(rng.standard_normal((4, 4)))

    def f(x):
        return (rt.tanh(a @ x) * x * x).sum()

    x, v = t(rng.standard_normal(4)), t(rng.standard_normal(4))
    h = hessian(f)(x).numpy()
    np.testing.assert_allclose(h, h.T, atol=1e-12)
    np.testing.assert_allclose(hvp(f, x, v).numpy(), h @ v.numpy(), atol=1e-12)
    j = jacobian(lambda x: rt.tanh(a @ x))(x).numpy()
    np.testing.assert_allclose(j, (1 - np.tanh(a.numpy() @ x.numpy()) ** 2)[:, None] * a.numpy(), atol=1e-12)
    _, pull = vjp(lambda x: rt.tanh(a @ x), x)
    np.testing.assert_allclose(pull(v)[0].numpy(), v.numpy() @ j, atol=1e-12)
    np.testing.assert_allclose(pull(v)[0].numpy(), v.numpy() @ j, atol=1e-12)


def test_jacobian_shapes():
    x = t(np.ones((2, 3)))
    assert jacobian(lambda x: x.sum(axis=0))(x).shape == (3, 2, 3)
    assert jacobian(lambda x: x.sum())(x).shape == (2, 3)
    assert jacobian(lambda x: rt.zeros((0,), dtype=rt.float64, device=rt.Cpu()) * x.sum())(x).shape == (0, 2, 3)
    both = jacobian(lambda x, y: x * y, argnums=(0, 1))(t([2.0]), t([3.0]))
    assert [b.item() for b in both] == [3.0, 2.0]


def test_vectors_pair_with_dicts_by_key_and_not_by_order():
    a, b = t([1.0, 2.0]), t([3.0, 4.0])
    product = hvp(lambda d: (d["a"] * d["b"]).sum(), {"a": a, "b": b}, {"b": t([5.0, 6.0]), "a": t([0.0, 0.0])})
    assert product["a"].tolist() == [5.0, 6.0] and product["b"].tolist() == [0.0, 0.0]
    _, pull = vjp(lambda x: [{"a": x, "b": 2.0 * x}], a)
    assert pull([{"b": t([1.0, 1.0]), "a": t([0.0, 0.0])}])[0].tolist() == [2.0, 2.0]
    with pytest.raises(ValueError, match=r"vjp: the keys \['a'\]"):
        pull([{"a": a}])
    with pytest.raises(TypeError, match="hvp: a dict was given for a list"):
        hvp(lambda x: (x[0] * x[1]).sum(), [a, b], {"b": b, "a": a})


def test_vjp_of_several_results():
    x = t([1.0, 2.0])
    (y, z), pull = vjp(lambda x: (x * 2.0, (x * x).sum()), x)
    assert y.numpy().tolist() == [2.0, 4.0] and z.item() == 5.0
    assert pull(t([1.0, 1.0]), t(1.0))[0].numpy().tolist() == [4.0, 6.0]
    with pytest.raises(ValueError, match="cotangents"):
        pull(t([1.0, 1.0]))


def test_gradient_penalty_reaches_captured_weights():
    w = t([[1.0, 2.0], [3.0, 4.0]]).require_grad()
    x = t([1.0, -1.0])
    g = grad(lambda x: rt.tanh(w @ x).sum(), order=2)(x)
    assert g.is_require_grad() and (g * g).sum().backward()[w].shape == (2, 2)


def test_second_derivative_of_a_first_order_graph_names_the_operation():
    x = t([1.0, 2.0, 3.0]).require_grad()
    y = (rt.softmax(x) * x).sum()
    with pytest.raises(HigherDerivativeUnsupported, match="softmax"):
        y.backward(order=2)
    with record(order=2):
        y = (rt.softmax(x) * x).sum()
    assert y.backward(order=2)[x].sum().backward()[x].shape == (3,)


def test_errors():
    x = t([1.0, 2.0])
    with pytest.raises(ValueError, match="one number"):
        grad(lambda x: x)(x)
    with pytest.raises(ValueError, match="argument 2"):
        grad(lambda x: x.sum(), argnums=2)(x)
    with pytest.raises(TypeError, match="floating"):
        grad(lambda x: x.sum())(rt.tensor([1, 2], device=rt.Cpu()))
    with pytest.raises(ValueError, match="order"):
        grad(lambda x: x.sum(), order=3)(x)
    with pytest.raises(ValueError, match="hvp"):
        hvp(lambda x: (x * x).sum(), x, t([1.0]))


def test_tensors_of_a_module():
    from ruda_nn import LinearConfig

    model = LinearConfig(2, 1).init(rt.Cpu())
    assert [p.shape for p in tensors_of(model)] == [(2, 1), (1,)]
    g = grad(lambda m: m(rt.ones((4, 2), device=rt.Cpu())).sum())(model)
    assert g.bias.numpy().tolist() == [4.0]
