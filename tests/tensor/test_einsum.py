"""Einstein summation: diagonals, orders of contraction, half types and errors, beside tests/specs/einsum.py."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ruda_autodiff as ra
import ruda_tensor as rt

from ._helpers import CPU, close


def test_SHAPE_04_repeated_subscripts(device):
    w = rt.tensor(np.arange(9.0).reshape(3, 3), device=device).require_grad()
    x = rt.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=rt.float64, device=device).require_grad()
    out = rt.einsum("nd,nn->d", x, w)
    close(out, [52, 64])
    gradients = rt.sum(out).backward()
    close(gradients[w], np.diag([3, 7, 11]))
    close(gradients[x], [[0, 0], [4, 4], [8, 8]])
    t = rt.tensor(np.arange(8.0).reshape(2, 2, 2), device=device)
    assert rt.einsum("iij->ij", t).tolist() == [[0, 1], [6, 7]]
    assert rt.einsum("iij->i", t).tolist() == [1, 13]
    trace = rt.einsum("ii->", w)
    assert trace.item() == 12
    close(trace.backward()[w], np.eye(3))


@st.composite
def sums_of_products(draw):
    sizes = {letter: draw(st.integers(0, 3)) for letter in "abcde"}
    terms = draw(st.lists(st.text("abcde", max_size=4), min_size=1, max_size=4))
    letters = sorted(set("".join(terms)))
    output = draw(st.permutations(letters))[: draw(st.integers(0, len(letters)))]
    subscripts = ",".join(terms) + ("->" + "".join(output) if draw(st.booleans()) else "")
    return subscripts, [tuple(sizes[letter] for letter in term) for term in terms]


@given(sums_of_products())
def test_any_subscripts_agree_with_numpy_in_value_and_gradient(case):
    subscripts, shapes = case
    arrays = [np.arange(np.prod(s, dtype=int)).reshape(s) % 5 - 2.0 for s in shapes]
    found = rt.einsum(subscripts, *[rt.tensor(a, dtype=rt.float64) for a in arrays])
    expected = np.einsum(subscripts, *arrays)
    assert found.shape == np.shape(expected) and np.array_equal(found.numpy(), expected)
    inputs = [rt.tensor(a, dtype=rt.float64) for a in arrays]
    gradients = ra.grad(lambda *t: rt.sum(rt.einsum(subscripts, *t)), argnums=tuple(range(len(inputs))))(*inputs)
    for i, (g, a) in enumerate(zip(gradients, arrays)):  # a product is linear in each of its factors
        assert g.shape == a.shape
        direction = np.arange(a.size).reshape(a.shape) % 3 + 1.0
        moved = np.einsum(subscripts, *[direction if j == i else b for j, b in enumerate(arrays)]).sum()
        close(np.sum(g.numpy() * direction), moved, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("subscripts", "shapes"),
    [
        ("...ij,...jk->...ik", [(2, 1, 3, 4), (5, 4, 2)]), ("i...,...i->...", [(3, 2), (1, 3)]),
        ("...,...", [(2, 1), (3,)]),
        ("b...i,ij->b...j", [(2, 5, 3), (3, 4)]), ("...ii->...i", [(2, 3, 3)]), ("... , i -> i...", [(2, 3), (4,)]),
    ],
)  # fmt: skip
def test_axes_of_an_ellipsis_broadcast(device, subscripts, shapes):
    arrays = [np.random.default_rng(i).standard_normal(s) for i, s in enumerate(shapes)]
    found = rt.einsum(subscripts, *[rt.tensor(a, device=device) for a in arrays])
    close(found, np.einsum(subscripts, *arrays), rtol=1e-12, atol=1e-12)


def test_many_factors_are_multiplied_in_a_cheap_order():
    """A chain whose naive order would make a 200 x 200 x 200 x 200 array: it must neither take that nor differ."""
    a, b, c = (rt.tensor(np.random.default_rng(i).standard_normal((200, 200))) for i in range(3))
    close(rt.einsum("ij,kl,jk->il", a, b, c), a.numpy() @ c.numpy() @ b.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [rt.float16, rt.bfloat16])
def test_halves_are_rounded_once(device, dtype):
    rng = np.random.default_rng(0)
    arrays = [rt.tensor(rng.standard_normal((40, 40)), dtype=dtype, device=device) for _ in range(3)]
    wide = [a.numpy().astype(np.float64) for a in arrays]
    step = 2.0 ** (-11 if dtype == rt.float16 else -8)
    for subscripts, count in (("ij,kj->ik", 2), ("ij,jk,kl->il", 3), ("ij->i", 1), ("ij,ik->jk", 2)):
        found = rt.einsum(subscripts, *arrays[:count])
        assert found.dtype == dtype
        expected = np.einsum(subscripts, *wide[:count])
        np.testing.assert_allclose(found.numpy().astype(np.float64), expected, rtol=step * 1.01, atol=1e-3)


def test_integers_keep_their_dtype(device):
    x = rt.tensor([[1, 2], [3, 4]], dtype=rt.int8, device=device)
    assert rt.einsum("ij,jk->ik", x, x).dtype == rt.int8 and rt.einsum("ij->", x).dtype == rt.int8
    assert rt.einsum("ij,jk", x, x).tolist() == [[7, 10], [15, 22]]


def test_the_plan_of_a_batched_product_is_one_matrix_product_of_views():
    from ruda_tensor.ops.einsum import _plan, matmul, reshape

    plan = _plan("bhqd,bhkd->bhqk", ((8, 8, 256, 64), (8, 8, 256, 64)))
    (pair,) = plan.pairs
    steps = [step for program in (pair.left, pair.right, pair.after, plan.last) for step, _ in program]
    assert pair.combine is matmul and reshape not in steps and plan.roundings == 1


X = rt.zeros((2, 3), device=CPU)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: rt.einsum("ij,jk->ik", X), ValueError, "names 2 operands, and 1 were given"),
        (lambda: rt.einsum("ij,jk->ik", X, X), ValueError, "'j' in 'ij,jk->ik' has sizes 3 and 2"),
        (lambda: rt.einsum("ij,jk->ik", X, rt.zeros((1, 2))), ValueError, "'j'.*sizes 3 and 1"),
        (lambda: rt.einsum("i->i", X), ValueError, "one letter per axis"),
        (lambda: rt.einsum("ijk->i", X), ValueError, "one letter per axis"),
        (lambda: rt.einsum("ij->ik", X), ValueError, "must name letters of the operands"),
        (lambda: rt.einsum("ij->ii", X), ValueError, "each once"),
        (lambda: rt.einsum("i1->i", X), ValueError, "use letters"),
        (lambda: rt.einsum("i..j->i", X), ValueError, "use letters"),
        (lambda: rt.einsum("...,...->...", X, rt.zeros(2)), ValueError, "an axis of the ellipsis"),
        (lambda: rt.einsum("ii->i", X), ValueError, "sizes 2 and 3"),
        (lambda: rt.einsum("ij->i", X == 0), TypeError, "bools are not multiplied"),
    ],
)
def test_errors_say_what_was_given_and_what_is_needed(call, error, message):
    with pytest.raises(error, match=message):
        call()
