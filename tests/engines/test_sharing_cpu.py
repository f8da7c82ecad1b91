"""How threads share the CPU engine's loops: by sequences or by units, the bits are those of one thread. And R in panels
or as it lies: the same numbers."""

import math

import numpy as np
import pytest

import numbarnn as nr
from numbarnn import cells
from numbarnn.cells import library
from numbarnn.compile.plain import plain
from numbarnn.engines import Engine
from numbarnn.engines.cpu import engine as cpu
from numbarnn.engines.cpu import fused, panels
from numbarnn.engines.cpu.records import by_address
from step_buffers import KINDS, forward_buffers, normal, walk

# One product, two, and sums over units.
CELLS = {
    "lstm": cells.LSTM,
    "gru_reset_before": cells.get("gru_reset_before"),
    "layer_norm_lstm": library.layer_norm_lstm,
}
B, H, P = 4, 300, 70  # no multiple of anything, beyond two TILEs; a share of P for each of four threads
WAYS = {"sequences": 1, "units": B + 1}  # ROWS_OF_THREAD, and ROWS_OF_SMALL
by_way = pytest.mark.parametrize("way", WAYS)


def steps():
    """(cell, options of `forward_buffers`), with ids."""
    for name, cell in CELLS.items():
        for kind, options in KINDS.items():
            if "projection" not in options or name == "lstm":
                options = options | ({"projection": P} if "projection" in options else {})
                yield pytest.param(cell, {"B": B, "H": H, **options}, id=f"{name}-{kind}")


by_steps = pytest.mark.parametrize("cell, options", list(steps()))


@pytest.fixture
def engine(cpu_on_threads, monkeypatch):
    """Whose memory for panels and sums is NaN until somebody writes there."""

    def empty(shape, dtype):
        return np.full(shape, 255 if dtype == np.uint8 else np.nan, dtype)  # bytes 255 are NaN of any dtype

    monkeypatch.setattr(cpu_on_threads._memory, "empty", empty)
    return cpu_on_threads


@pytest.fixture
def share(engine, monkeypatch):
    """share(way, threads): as so many threads, no fewer, would share the next calls."""

    def choose(way, threads):
        for rows in ("ROWS_OF_THREAD", "ROWS_OF_SMALL"):
            monkeypatch.setattr(cpu, rows, WAYS[way])
        engine.set_num_threads(threads)

    return choose


@pytest.fixture
def loops_run(engine, monkeypatch):
    """(threads, whether they share sequences; whether R is in panels) of each loop that was run, by itself."""
    taken, make = [], fused.Fused.__init__

    def spy(self, parts, pool, empty):
        names = {address: known.__name__ for (known, _), address in engine._functions.items()}
        for one in parts:
            if names[one.function].endswith("_loop"):
                call = one.record
                taken.append((one.threads, bool(call.by_rows), bool(call.pack)))
        make(self, parts, pool, empty)

    monkeypatch.setattr(fused.Fused, "__init__", spy)
    monkeypatch.setattr(engine, "compile", lambda given: Engine.compile(engine, given))  # each loop by itself
    return taken


def assert_same_bits(found):
    for one, *others in zip(*found, strict=True):
        assert np.isfinite(one).all()
        for other in others:
            np.testing.assert_array_equal(one, other)


def assert_close(one, other):
    """As near as sums in another order: a hundred roundings of the largest number."""
    assert np.isfinite(one).all()
    np.testing.assert_allclose(one, other, rtol=0, atol=100 * np.finfo("float32").eps * np.abs(one).max(initial=1))


@by_way
@by_steps
@pytest.mark.parametrize("direction", (0, 1))
def test_bits_do_not_depend_on_the_number_of_threads(engine, share, loops_run, cell, options, direction, way):
    """Forward and backward, all results; nor on the pieces in which steps are run."""
    found = []
    for threads in (1, 2, 3, 4):
        share(way, threads)
        cuts = (0, 2, 3, 7) if threads == 3 else (0, 7)
        found.append(walk(engine, cell, direction, cuts, **options)[1])
    assert {loop[:2] for loop in loops_run} == {(threads, way == "sequences") for threads in (1, 2, 3, 4)}
    assert_same_bits(found)


def test_threads_begin_a_step_when_all_have_done_the_last(engine, share):
    """Many steps, as beside other programs threads are seldom there at once."""
    found = []
    for threads in (1, 2, 2, 2, 3, 4):
        share("units", threads)
        found.append(walk(engine, cells.GRU, 0, (0, 300), T=300, B=B, H=256)[1])
    assert_same_bits(found)


_pack_rows = plain(panels.pack_rows.py_func)


@by_address
def pack_slowly(zero, address):
    """`panels.pack_rows`, some tenths of a millisecond later."""
    total = np.float64(0)
    for k in range(100_000):
        total += math.sqrt(np.float64(k))
    if int(total) > 0:
        _pack_rows(zero, address)


@by_way
def test_threads_begin_when_all_weights_are_packed(engine, share, monkeypatch, way):
    """Of 19 panels of a gate one of two threads packs one more than the other."""
    monkeypatch.setattr(panels, "pack_rows", pack_slowly)
    found = []
    for threads in (1, 2, 2, 3):
        share(way, threads)
        forward = forward_buffers(cells.GRU, 0, T=3, B=B, H=H)
        engine.forward_steps(forward)(0, 3)
        found.append([forward.states.h[1:-1, :, :H]])
    assert_same_bits(found)


# ------------------------------------------------------------------------------------------ R in panels, or not
@by_way
@by_steps
def test_panels_of_weights_change_nothing_but_rounding(engine, share, monkeypatch, cell, options, way):
    found = []
    for packed_from in (1, 10**9):
        for least in ("PACKED_FROM", "PACKED_BACK_FROM"):
            monkeypatch.setattr(cpu, least, packed_from)
        share(way, 2)
        found.append(walk(engine, cell, 0, **options)[1])
    for packed, lying in zip(*found, strict=True):
        assert_close(packed, lying)


@pytest.mark.parametrize("steps", (1, 12), ids=("lying", "panels"))
@pytest.mark.parametrize("options", ({}, {"proj_size": 3}), ids=("", "projected"))
def test_weights_changed_in_place_are_noticed(steps, options):
    """Between two calls, whatever is kept of the first: each weight, by its name and in the flat array."""
    x = normal("float32", steps, 2, 4)
    layer = nr.LSTM(4, 5, device="cpu", seed=0, **options)

    def answers(layer):
        y, _, tape = layer.forward(x)
        return [layer(x)[0], y, layer.backward(tape, np.ones_like(y)).x]

    def changed(name):
        before, layer.parameters[name][...] = answers(layer), layer.parameters[name] * 2 + 1
        fresh = nr.LSTM(4, 5, device="cpu", seed=1, **options)
        fresh.weights[...] = layer.weights
        found, expected = answers(layer), answers(fresh)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
        return not np.array_equal(before[0], found[0])

    recurrent = [name for name in layer.parameters if "hh" in name]
    assert len(layer.parameters) > len(recurrent) > 0
    assert all(changed(name) for name in layer.parameters if steps > 1 or name not in recurrent)
    before, layer.weights[...] = answers(layer), 0.5
    assert all((one != other).any() for one, other in zip(before[:2], answers(layer)[:2], strict=True))


def padded_calls(layer, x, lengths):
    """y of inference; y, dx and the gradients of all parameters, of sequences of these lengths."""
    y, _, tape = layer.forward(x, lengths=lengths)
    grads = layer.backward(tape, dy=normal("float32", *y.shape, seed=2))
    return [layer(x, lengths=lengths)[0], layer(x)[0], y, grads.x, grads.weights]


@by_way
@pytest.mark.parametrize("cell", [*CELLS.values(), library.sru], ids=lambda cell: cell.name)
def test_x_is_multiplied_for_some_steps_at_a_time(share, monkeypatch, cell, way):
    """The same bits for one step, some, and all: in both directions, of two layers, on threads with several sequences
    or some units each. One gate of sru is x itself."""
    x, lengths, found = normal("float32", 9, 13, 70), np.arange(13, dtype=np.int32) % 9 + 1, []
    for threads in (1, 2, 4):
        for rows in (1, 40, 1000):
            monkeypatch.setattr(cpu, "CHUNK_ROWS", rows)
            share(way, threads)
            layer = nr.RNN(cell, 70, 70, num_layers=2, bidirectional=True, device="cpu", seed=0)
            found.append(padded_calls(layer, x, lengths))
    assert_same_bits(found)


def test_x_is_multiplied_before_others_have_done_the_last_step(share, loops_run, monkeypatch):
    """Where threads share units."""
    monkeypatch.setattr(cpu, "LEAST_CALL", 0)
    layer, x, found = nr.LSTM(20, 200, device="cpu", seed=0), normal("float32", 400, 4, 20), []
    for threads in (1, 2, 3, 4, 4, 4, 4):
        share("units", threads)
        found.append([layer(x)[0]])
        assert loops_run.pop() == (threads, False, True)
    assert_same_bits(found)
