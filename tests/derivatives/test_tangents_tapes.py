"""What callers may do around jvp and hvp: leave out arguments, change arrays, use threads, copy layers; what not."""

import copy
import gc
import pickle
import threading
import weakref
from dataclasses import replace

import numpy as np
import pytest

import numbarnn as nr
from directions import flat, mapped
from numbarnn.cells import library

X, DX = np.random.default_rng(4).standard_normal((2, 4, 2, 3))


def make(kind=nr.LSTM, dtype="float64", **options):
    return kind(3, 5, 2, dtype=dtype, device="cpu", seed=1, **options)


def parts(gradients):
    return [(one.x, one.state, one.weights) for one in gradients]


def second(layer, *args, dy=1.0, **options):
    """(everything that jvp returns but the tape, what hvp returns) of constant dy."""
    *results, tape = layer.jvp(*args, tape=True, **options)
    return results, parts(layer.hvp(tape, np.full_like(results[0], dy)))


# -------------------------------------------------------------------------------------------------- what is left out
def test_none_is_zero():
    layer = make()
    _, (h, c) = layer(X)
    zero_h, zero_c = np.zeros_like(h), np.zeros_like(c)
    found = second(layer, X, None, (h, None), (None, c))
    expected = second(layer, X, 0 * DX, (h, zero_c), (zero_h, c), weights=np.zeros_like(layer.weights))
    np.testing.assert_array_equal(flat(found), flat(expected))


@pytest.mark.parametrize("given", [(), ("dy",), ("dstate",), ("ddy",), ("ddstate",)], ids=str)
@pytest.mark.parametrize("options", [{}, {"proj_size": 2}], ids=str)
def test_gradients_that_are_left_out_are_zero(given, options):
    layer = make(**options)
    y, state = layer(X)
    ones = {"dy": y, "dstate": (state[0], None), "ddy": y, "ddstate": (None, state[1])}
    zeros = {name: mapped(np.zeros_like, y if name.endswith("dy") else state) for name in ones}
    found = layer.hvp(layer.jvp(X, DX, tape=True)[-1], **{name: ones[name] for name in given})
    same = {name: ones[name] if name in given else zeros[name] for name in ones}
    expected = layer.hvp(layer.jvp(X, DX, tape=True)[-1], **same)
    np.testing.assert_array_equal(flat(parts(found)), flat(parts(expected)))


def test_what_does_not_move_has_tangents_of_zero():
    layer = make(nr.GRU)
    y, dy, _, dh, tape = layer.jvp(X, tape=True)
    gradients, product = layer.hvp(tape, y)
    assert not flat([dy, dh, parts([product])]).any()
    expected = layer.backward(layer.forward(X)[-1], y)
    np.testing.assert_allclose(flat(parts([gradients])), flat(parts([expected])), rtol=1e-12, atol=1e-15)


# ----------------------------------------------------------------------------------------------- what changes meanwhile
@pytest.mark.parametrize("kind", [nr.LSTM, lambda *args, **options: nr.RNN(library.cornn, *args, **options)])
def test_a_tape_has_copies(kind):
    """Of x, the weights, the direction and y: other calls and changes between jvp and hvp change nothing."""
    layer = make(kind)
    arrays = [X.copy(), DX.copy()]
    dweights = layer.weights + 1
    y, tangent, *_, tape = layer.jvp(*arrays, weights=dweights, tape=True)
    dy = y.copy()
    expected = layer.hvp(layer.jvp(*arrays, weights=dweights, tape=True)[-1], dy)
    for array in (*arrays, dweights, layer.weights, y, tangent):
        array[...] *= -2
    layer.jvp(*arrays, weights=dweights, tape=True)
    np.testing.assert_array_equal(flat(parts(layer.hvp(tape, dy))), flat(parts(expected)))


def test_threads_share_a_layer():
    layer, rng = nr.LSTM(3, 40, 2, dtype="float64", device="cpu", seed=1), np.random.default_rng(0)
    points = rng.standard_normal((4, 2, 20, 2, 3))
    expected = [flat(second(layer, *point)) for point in points]
    wrong, start = [], threading.Barrier(len(points))

    def run(number):
        start.wait()
        for _ in range(40):
            found = flat(second(layer, *points[number]))
            wrong.extend([number] * (not np.array_equal(found, expected[number])))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(points))]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong


def test_tapes_and_layers_are_freed_without_the_collector():
    layer = make(nr.GRU)
    y, *_, tape = layer.jvp(X, DX, tape=True)
    kept, stack = weakref.ref(tape.kept[0][0]), weakref.ref(layer.stack)
    gc.disable()
    try:
        layer.hvp(tape, y)
        assert kept() is None  # a tape that is used up takes no memory
        del layer, tape
        assert stack() is None
    finally:
        gc.enable()


def test_copies_and_pickles_of_a_layer_have_tangents_of_their_own():
    layer = make()
    expected = flat(second(layer, X, DX))
    size = len(pickle.dumps(make()))
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert other.stack.tangents is None
        layer.weights[...] *= 2
        np.testing.assert_array_equal(flat(second(other, X, DX)), expected)
        layer.weights[...] /= 2
    assert len(pickle.dumps(layer)) == size
    with pytest.raises(TypeError, match="a tape cannot be copied or pickled"):
        copy.copy(layer.jvp(X, tape=True)[-1])


def test_nothing_is_made_before_it_is_used():
    layer = make()
    layer.backward(layer.forward(X)[-1], per_sequence=True)
    assert layer.stack.tangents is None


def test_what_lies_apart_in_memory():
    layer, apart = make(), [np.ascontiguousarray(one.swapaxes(0, 2)).swapaxes(0, 2) for one in (X, DX)]
    assert not apart[1].flags.c_contiguous
    np.testing.assert_array_equal(flat(second(layer, *apart)), flat(second(layer, X, DX)))


def test_more_units_than_a_kernel_has_columns():
    layer = nr.GRU(2, 1100, dtype="float32", device="cpu", seed=1)
    x = np.random.default_rng(0).standard_normal((2, 1, 2)).astype("float32")
    dy = layer.jvp(x, x)[1]
    np.testing.assert_allclose(dy, (layer(1.01 * x)[0] - layer(0.99 * x)[0]) / 0.02, atol=1e-4)


# ---------------------------------------------------------------------------------------------------------- bad input
@nr.cell
def halved(x, h, p):
    return nr.tanh(p.W.h @ x + 0.5 * h)


def of_jvp(x=X, **options):
    return lambda layer: layer.jvp(x, **options)


def of_hvp(**options):
    return lambda layer: layer.hvp(layer.jvp(X, tape=True)[-1], **options)


NARROW, SHORT = np.zeros((4, 2, 5), "float32"), np.zeros((2, 3, 5))
BAD = {
    "x of integers": (of_jvp(X.astype(int)), TypeError, r"x has dtype \w+, but.*float64"),
    "dx of another shape": (of_jvp(dx=DX[:2]), ValueError, r"dx must have shape \(4, 2, 3\)"),
    "dx of another dtype": (of_jvp(dx=DX.astype("float32")), TypeError, r"dx has dtype float32.*pass dx\.astype"),
    "dstate of another shape": (of_jvp(dstate=(SHORT, None)), ValueError, r"dstate\[0\].*\(2, 2, 5\)"),
    "dstate of one array": (of_jvp(dstate=SHORT), TypeError, r"dstate.*\(h, c\)"),
    "weights of another shape": (of_jvp(weights=SHORT), ValueError, "weights must"),
    "weights of another dtype": (
        lambda layer: layer.jvp(X, weights=layer.weights.astype("float32")), TypeError, "weights has dtype float32",
    ),
    "training that is no bool": (of_jvp(training=2), TypeError, "training must be"),
    "tape that is no bool": (of_jvp(tape=2), TypeError, "tape must be"),
    "lengths of a wrong shape": (of_jvp(lengths=[1]), ValueError, "lengths must"),
    "dy of another shape": (of_hvp(dy=X), ValueError, r"dy must have shape \(4, 2, 5\)"),
    "ddy of another dtype": (of_hvp(ddy=NARROW), TypeError, "ddy has dtype float32"),
    "ddstate of another shape": (of_hvp(ddstate=(None, SHORT)), ValueError, r"ddstate\[1\]"),
    "no tape": (lambda layer: layer.hvp(None), TypeError, r"tape must be what jvp\(\.\.\., tape=True\) returned"),
    "a tape of forward": (lambda layer: layer.hvp(layer.forward(X)[-1]), TypeError, "tape.*jvp.*not a Tape"),
    "another layer's": (
        lambda layer: layer.hvp(make().jvp(X, tape=True)[-1]),
        ValueError,
        "the layer whose jvp made it",
    ),
    "one of jvp for backward": (lambda layer: layer.backward(layer.jvp(X, tape=True)[-1]), TypeError, "what forward"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named_and_the_layer_still_works(name):
    call, error, message = BAD[name]
    layer = make()
    with pytest.raises(error, match=message):
        call(layer)
    np.testing.assert_array_equal(flat(second(layer, X, DX)), flat(second(make(), X, DX)))


def test_a_tape_is_good_for_one_hvp():
    layer = make()
    y, *_, tape = layer.jvp(X, DX, tape=True)
    with pytest.raises(ValueError, match="dy must have shape"):
        layer.hvp(tape, X)  # does not use it up
    layer.hvp(tape, y)
    with pytest.raises(ValueError, match="tape was already used, and hvp overwrites it"):
        layer.hvp(tape, y)


def test_packed_input_is_packed_throughout():
    layer, packed = make(), nr.PackedSequence(np.ones((3, 3)), np.array([2, 1]), None, None)
    with pytest.raises(TypeError, match="dx must be a PackedSequence, as x was"):
        layer.jvp(packed, np.ones((3, 3)))
    with pytest.raises(ValueError, match="lengths must be None with a packed x"):
        layer.jvp(packed, lengths=[2, 1])


def test_cells_written_as_functions_have_no_tangents():
    layer = nr.RNN(replace(nr.cells.LSTM, name="by_hand"), 3, 4, device="cpu", dtype="float64")
    with pytest.raises(NotImplementedError, match=r"written as functions.*@numbarnn\.cell"):
        layer.jvp(X)
    y = nr.RNN(halved, 3, 4, device="cpu", dtype="float64").jvp(X, DX)[0]
    assert y.shape == (4, 2, 4)  # without R
