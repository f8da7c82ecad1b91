"""Memory that the CPU engine's calls use again."""

import gc
import threading
import weakref

import numpy as np
import pytest

import numbarnn as nr
from numbarnn.engines.cpu import memory


def place(array):
    return array.__array_interface__["data"][0]


def test_what_an_array_leaves_serves_the_next_one_of_about_its_size():
    pool = memory.MemoryPool()
    first = pool.empty((300, 100), "float32")
    where, view = place(first), first[5:]
    assert where % 64 == 0 and first.shape == (300, 100) and first.dtype == "float32"
    del first
    assert place(pool.empty((300, 100), "float32")) != where, "a view still reads it"
    del view
    assert place(pool.empty((149, 100), "float64")) == where


def test_memory_of_an_earlier_problem_makes_room(monkeypatch):
    """Else a process whose first problem filled what is kept gets new pages for all arrays of others, in each call."""
    pool, size = memory.MemoryPool(), 1 << 18
    monkeypatch.setattr(memory, "MOST_KEPT", 4 * size)
    first = [pool.empty((size,), "uint8") for _ in range(4)]
    del first
    for _ in range(2):
        others = [pool.empty((size // 2,), "uint8") for _ in range(6)]
        places = sorted(map(place, others))
        del others
    again = [pool.empty((size // 2,), "uint8") for _ in range(6)]
    assert sorted(map(place, again)) == places
    assert pool._kept == size, "of four, what there is room for"
    del again
    pool.empty((5 * size,), "uint8")
    assert pool._kept == 4 * size, "what is too large to be kept takes no room"


def test_threads_may_make_and_leave_arrays_at_once():
    pool, wrong = memory.MemoryPool(), []

    def work(number):
        for _ in range(200):
            array = pool.empty((100_000,), "uint8")
            array[...] = number
            if not (array == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_where_memory_ends_what_is_kept_is_given_back_first(monkeypatch):
    pool, size = memory.MemoryPool(), 1 << 22
    del [pool.empty((size,), "uint8") for _ in range(3)][:]
    taken, aligned = [], memory.aligned

    def limited(wanted):
        """Memory of a system that has room for so much beside what the pool keeps."""
        taken.append(wanted)
        if wanted + pool._kept > 4 * size:
            raise MemoryError("the system has no more")
        return aligned(wanted)

    monkeypatch.setattr(memory, "aligned", limited)
    array = pool.empty((2 * size,), "uint8")
    assert array.nbytes == 2 * size
    assert taken == [2 * size] * 2 and pool._kept == 0
    with pytest.raises(MemoryError):
        pool.empty((5 * size,), "uint8")


def test_give_back_memory_frees_what_repeated_calls_keep():
    layer, x = nr.LSTM(40, 60, 2, seed=0, device="cpu"), np.ones((10, 8, 40), np.float32)
    engine, prepared = layer.engine, []
    gc.collect()
    engine.give_back_memory()
    for _ in range(3):
        y, _, tape = layer.forward(x)
        layer.backward(tape, y)
        prepared.append(weakref.ref(tape.prepared))
        expected, _ = layer(x)
    del tape
    engine.give_back_memory()
    gc.collect()
    assert not any(one() for one in prepared)
    assert engine._memory._kept == 0
    assert np.array_equal(layer(x)[0], expected)
