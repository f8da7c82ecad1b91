"""Packed weights that inference keeps: what has changed is packed anew, whatever it is and whoever changed it."""

import gc
import threading

import numpy as np
import pytest

import numbarnn as nr
from numbarnn import engines
from numbarnn.engines.cpu import memory, packed
from numbarnn.engines.cpu.records import from_python
from numbarnn.engines.cpu.vectors import numbers_at

INPUT, HIDDEN, STEPS, BATCH = 5, 40, 5, 4  # panels of either width, whole and not; rows enough to pack


# ------------------------------------------------------------------------------------------ fingerprints
@from_python
def into(out, address, count):
    """The fingerprint of so many words there, to an address."""
    numbers_at(packed.NOTHING, out)[0] = packed.fingerprint(address, count)


def fingerprint(words):
    found, words = np.zeros(1, np.uint64), np.ascontiguousarray(words)
    into(found.ctypes.data, words.ctypes.data, words.nbytes // 4)
    return int(found[0])


@pytest.mark.parametrize("count", [1, 3, packed.LANES - 1, packed.LANES, packed.LANES + 1, 5 * packed.LANES + 7])
def test_every_word_counts_and_so_does_its_place(count):
    words = np.random.default_rng(count).integers(0, 1 << 32, count, np.uint32)
    changed = [words.copy() for _ in range(3 * count)]
    for place in range(count):
        changed[3 * place][place] ^= 1  # the lowest bit, the highest, and all
        changed[3 * place + 1][place] ^= 1 << 31
        changed[3 * place + 2][place] ^= 0xFFFFFFFF
    changed += [np.roll(words, n) for n in range(1, count)]
    assert len({fingerprint(one) for one in [words, *changed]}) == 1 + len(changed)
    assert fingerprint(words) == fingerprint(words.copy())


def test_changes_of_two_words_that_one_lane_reads():
    """Which a product and an exclusive or alone would miss: of signs, say, and of words that change places."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(4 * packed.LANES).astype(np.float32)
    changed = [weights, -weights, weights[::-1], np.zeros_like(weights), np.ones_like(weights)]
    for j in range(packed.LANES):
        for k in range(1, 4):
            places = [j, j + k * packed.LANES]
            for change in (-weights[places], weights[places[::-1]], 2 * weights[places], weights[places] * [1, 0]):
                changed.append(weights.copy())
                changed[-1][places] = change
    assert len({fingerprint(one) for one in changed}) == len(changed)


def test_changes_of_two_bits_that_one_lane_reads():
    """A sign, say, and one bit of the number that the lane reads next."""
    words = np.random.default_rng(0).integers(0, 1 << 32, 2 * packed.LANES, np.uint32)
    changed = [words]
    for first in range(32):
        for second in range(32):
            changed.append(words.copy())
            changed[-1][[3, 3 + packed.LANES]] ^= np.array([1 << first, 1 << second], np.uint32)
    assert len({fingerprint(one) for one in changed}) == len(changed)


def test_changes_of_two_words_of_two_lanes():
    """Lanes become half as many in the end: signs, and words that change places."""
    words = np.random.default_rng(0).standard_normal(packed.LANES).astype(np.float32)
    changed = [words]
    for j in range(packed.LANES):
        for k in range(j):
            for change in (-words[[j, k]], words[[k, j]]):
                changed.append(words.copy())
                changed[-1][[j, k]] = change
    assert len({fingerprint(one) for one in changed}) == len(changed)


def test_words_beyond_the_count_are_not_read():
    words = np.arange(1000, dtype=np.uint32)
    found = np.zeros(2, np.uint64)
    for number in range(2):
        words[300:] += number
        into(found[number:].ctypes.data, words.ctypes.data, 300)
    assert found[0] == found[1]


# ------------------------------------------------------------------------------------------ lending
@pytest.fixture
def lender():
    return packed.PackedWeights(memory.MemoryPool())


def test_a_call_gets_what_the_last_one_of_its_weights_left(lender):
    weights = np.zeros((4, 5), np.float32)
    first = lender.lend(weights, "W", (3, 4, 5))
    assert first.panels.shape == (3, 4, 5) and first.panels.dtype == np.float32 and not first.prints.any()
    other, left = lender.lend(weights, "W", (3, 4, 5)), first.panels
    assert other.panels is not left, "two calls at the same time"
    first.prints[:] = 7
    del first
    gc.collect()
    assert not lender.lend(weights, "R", (3, 4, 5)).prints.any()
    assert not lender.lend(weights.copy(), "W", (3, 4, 5)).prints.any()
    again = lender.lend(weights[1:], "W", (3, 4, 5))
    assert again.panels is left and (again.prints == 7).all()


def test_no_more_is_kept_than_is_allowed(lender, monkeypatch):
    """By packed weights and by the memory of other arrays together."""
    size = 1 << 18
    monkeypatch.setattr(memory, "MOST_KEPT", 2 * size)
    arrays = [np.zeros(5, np.uint8) for _ in range(4)]
    lent = [lender.lend(array, "W", (size,)) for array in arrays]
    del lent[1]
    assert lender.lend(arrays[0], "R", (9,)) and lender._kept == size
    others = [lender._pool.empty((size,), "uint8") for _ in range(3)]
    del others
    assert lender._pool._kept == size
    lent.clear()
    lender.lend(arrays[0], "R", (9,))
    assert lender._kept <= 2 * size and lender._kept + lender._pool._kept <= 2 * size
    lender.clear()
    assert not lender._of and not lender._returned and lender._kept == 0


def test_packed_weights_go_with_their_layer():
    """However many layers there have been: a call neither searches through theirs nor finds their memory taken."""
    nr.GRU(INPUT, HIDDEN, device="cpu")(np.ones((STEPS, BATCH, INPUT), np.float32), lengths=[STEPS] * BATCH)
    lender = engines.get("cpu")._packed
    gc.collect()
    lender.lend(np.zeros(3), "W", (3,))
    before = len(lender._of), lender._kept
    for _ in range(20):
        layer = nr.GRU(INPUT, HIDDEN, device="cpu")
        layer(np.ones((STEPS, BATCH, INPUT), np.float32), lengths=[STEPS] * BATCH)
        layer(np.ones((STEPS, BATCH, INPUT), np.float32))
    assert len(lender._of) <= before[0] + 2
    del layer
    gc.collect()
    lender.lend(np.zeros(3), "W", (3,))
    assert (len(lender._of), lender._kept) <= before


# ------------------------------------------------------------------------------------------ layers
LAYERS = {
    "lstm": lambda **given: nr.LSTM(INPUT, HIDDEN, 2, bidirectional=True, **given),
    "gru": lambda **given: nr.GRU(INPUT, HIDDEN, **given),
    "projection": lambda **given: nr.LSTM(INPUT, HIDDEN, proj_size=7, **given),
}


def changes(weights, rng):
    """Functions that change weights in place, each in another way."""
    for place in rng.integers(0, weights.size, 12):
        yield lambda place=place: weights.__setitem__(place, weights[place] + 1)
    yield lambda: np.negative(weights, weights)
    yield lambda: weights.__setitem__(slice(None), weights[::-1].copy())
    yield lambda: weights.fill(0.01)
    yield lambda: weights.__setitem__(slice(None), rng.normal(0, 0.1, weights.size))
    yield lambda: None


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", LAYERS)
def test_changed_weights_are_noticed(name, dtype, cpu_on_threads):
    """By calls that are bound and such that are not, of one thread to three."""
    rng, layer = np.random.default_rng(0), LAYERS[name](device="cpu", dtype=dtype, seed=1)
    inputs = [rng.standard_normal((steps, BATCH, INPUT)).astype(dtype) for steps in (STEPS, 7, STEPS)]
    lengths = [STEPS, 1, 2, 0]
    for number, change in enumerate(changes(layer.weights, rng)):
        change()
        cpu_on_threads.set_num_threads(1 + number % 3)
        fresh = LAYERS[name](device="cpu", dtype=dtype, seed=2)
        fresh.load_state_dict(layer.state_dict())
        for x in inputs:
            np.testing.assert_array_equal(layer(x)[0], fresh.forward(x)[0])  # training packs anew
        found = layer(inputs[0], lengths=lengths)[0]
        np.testing.assert_array_equal(found, fresh.forward(inputs[0], lengths=lengths)[0])


def test_calls_at_the_same_time():
    """Of threads, each with panels of its own, while weights are those of one layer."""
    layer = LAYERS["lstm"](device="cpu", seed=1)
    x = np.random.default_rng(0).standard_normal((STEPS, BATCH, INPUT)).astype(np.float32)
    lengths, wrong = [STEPS] * BATCH, []
    expected = layer.forward(x)[0].copy()

    def work():
        for _ in range(40):
            if not np.array_equal(layer(x, lengths=lengths)[0], expected):
                wrong.append(threading.current_thread())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_is_known_is_not_packed_again():
    """Which numbers written into kept panels show: the next call reads them."""
    layer = nr.GRU(INPUT, HIDDEN, device="cpu", seed=1)
    x, lengths = np.ones((STEPS, BATCH, INPUT), np.float32), [STEPS] * BATCH
    layer.engine._packed.clear()
    first = layer(x, lengths=lengths)[0].copy()
    kept = layer.engine._packed._returned
    assert kept
    for *_, panels, _ in kept:
        panels[...] *= 0.5
    assert not np.array_equal(layer(x, lengths=lengths)[0], first)
    layer.weights[...] *= 1.5
    halved = layer(x, lengths=lengths)[0]
    np.testing.assert_array_equal(halved, layer.forward(x)[0])
