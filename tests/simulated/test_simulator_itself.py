"""The simulator: right kernels are right in any order of their threads, wrong ones are found out."""

import re

import numpy as np
import pytest
from numba import cuda, float64
from threads import SEEDS, any_order, launch

from numbarnn import engines
from numbarnn.common import install
from numbarnn.cuda import simulator

# ------------------------------------------------------------------------------- blocks that wait for each other
LAYERS, STEPS, UNITS = 3, 6, 8


def make_wavefront(without=""):
    """A stack of layers, one block each, that runs as a wavefront; `without` names the synchronization left out."""

    @cuda.jit
    def wavefront_kernel(x, done):
        """x[l, t, i] = i + the sum of x[l - 1, :t + 1].

        Writes   x[1:] of x (L+1, T, H); done (L+1,): steps finished
        Reads    x[0], of which all steps are done
        Launch   L blocks of H threads, all resident
        """
        tile = cuda.shared.array(UNITS, float64)
        layer, i, total = cuda.blockIdx.x + 1, cuda.threadIdx.x, 0.0
        for t in range(STEPS):
            if i == 0 and without != "wait":
                while done[layer - 1] <= t:
                    cuda.nanosleep(20)
            if without != "barrier after the wait":
                cuda.syncthreads()
            tile[i] = x[layer - 1, t, i]
            if without != "barrier before the sum":
                cuda.syncthreads()
            for k in range(UNITS):
                total += tile[k]
            if without == "order of store and signal" and i == 0:
                cuda.atomic.add(done, layer, 1)
            x[layer, t, i] = total + i
            if without != "barrier before the signal":
                cuda.syncthreads()
            if without != "order of store and signal" and i == 0:
                cuda.threadfence()
                cuda.atomic.add(done, layer, 1)

    return wavefront_kernel


def wavefront_is_right(seed, without=""):
    x = np.full((LAYERS + 1, STEPS, UNITS), np.nan)  # sums of small integers: exact
    x[0] = np.arange(STEPS * UNITS).reshape(STEPS, UNITS) % 5
    done = np.array([STEPS] + [0] * LAYERS, np.int32)
    with simulator.schedule(seed):
        launch(make_wavefront(without), LAYERS, UNITS, x, done)
    expected = x[:1]
    for _ in range(LAYERS):
        below = expected[-1].sum(axis=1).cumsum()
        expected = np.concatenate([expected, (below[:, None] + np.arange(UNITS))[None]])
    return np.array_equal(x, expected)


@any_order
def test_wavefront_of_blocks(seed):
    assert wavefront_is_right(seed)


@pytest.mark.parametrize(
    "without",
    [
        "wait",
        "barrier after the wait",
        "barrier before the sum",
        "barrier before the signal",
        "order of store and signal",
    ],
)
def test_wavefront_without_one_synchronization_is_wrong(without):
    caught = [seed for seed in SEEDS if not wavefront_is_right(seed, without)]
    assert caught == list(SEEDS), f"without {without} only {caught} of {list(SEEDS)} are wrong"


@cuda.jit
def order_kernel(order, turn):
    for _ in range(3):
        order[cuda.atomic.add(turn, 0, 1)] = cuda.grid(1)


def order():
    """Who came when, of 12 threads that come three times each."""
    found = np.full(3 * 12, -1, np.int32)
    launch(order_kernel, 3, 4, found, np.zeros(1, np.int32))
    return found.tolist()


def order_of(*seed):
    with simulator.schedule(*seed):
        return order()


def test_the_same_seed_is_the_same_order():
    assert order_of(simulator.IN_TURN) == [*range(12)] * 3
    assert order_of(1) == order_of(1) != order_of(2)
    assert sorted(order_of(1)) == sorted([*range(12)] * 3)


def test_the_order_is_random_by_default_and_the_environment_may_choose_the_seed(monkeypatch):
    """Outside of `schedule` and in one without a seed; launches of the same kernel have different orders."""
    monkeypatch.delenv(simulator.SEED_VARIABLE, raising=False)
    monkeypatch.setattr(simulator, "_order", None)
    first, second = order(), order()
    assert first != second and order_of(simulator.IN_TURN) not in (first, second)
    assert first == order_of() == order_of(simulator.DEFAULT_SEED)
    for text, seed in (("7", 7), ("-7", -7), ("seven", "seven"), (simulator.IN_TURN, simulator.IN_TURN)):
        monkeypatch.setenv(simulator.SEED_VARIABLE, text)
        assert order_of() == order_of(seed) != first
        assert order_of(0) == first


@pytest.mark.parametrize("seed, told", [(3, "in the random order of seed 3, "), (simulator.IN_TURN, "in turn, ")])
def test_errors_say_how_to_have_the_same_order_again(seed, told):
    @cuda.jit
    def failing_kernel(what, flag):
        if what == 1:
            raise ValueError("on purpose")
        while what == 2 and flag[0] == 0:
            cuda.nanosleep(20)
        if what == 3 and cuda.threadIdx.x == 0:
            cuda.syncwarp(3)
            cuda.syncthreads()
        cuda.syncthreads()

    with simulator.schedule(seed):
        for what, message in ((1, "ValueError: on purpose"), (2, "livelock, "), (3, "deadlock, ")):
            with pytest.raises(RuntimeError, match=rf"{message}.*\(threads {told}launch {what} of these\)"):
                launch(failing_kernel, 1, 2, np.int32(what), np.zeros(1, np.int32))


# --------------------------------------------------------------------------------------------------- endless waits
@any_order
def test_barrier_in_divergent_code_is_a_deadlock(seed):
    @cuda.jit
    def divergent_kernel(x):
        if cuda.blockIdx.x == 1 and cuda.threadIdx.x < 3:
            cuda.syncthreads()
        x[cuda.grid(1)] = 1
        cuda.syncthreads()

    with simulator.schedule(seed), pytest.raises(RuntimeError, match="divergent_kernel: deadlock") as caught:
        launch(divergent_kernel, 2, 4, np.zeros(8))
    for waiting in ("3 of 4 threads of block (1, 0, 0) at syncthreads", "1 of 4 threads of block (1, 0, 0) at syncth"):
        assert waiting in str(caught.value)
    assert "block (0, 0, 0)" not in str(caught.value)
    assert re.search(r"test_simulator_itself.py:\d+ in divergent_kernel", str(caught.value))


@any_order
def test_waiting_for_a_block_that_never_comes_is_a_livelock(seed):
    @cuda.jit
    def waiting_kernel(done):
        if cuda.threadIdx.x == 0:
            cuda.atomic.add(done, cuda.blockIdx.x, 1)
            while done[cuda.blockIdx.x + 1] == 0:
                cuda.nanosleep(20)
        cuda.syncthreads()

    with simulator.schedule(seed), pytest.raises(RuntimeError, match="waiting_kernel: livelock") as caught:
        launch(waiting_kernel, 3, 8, np.zeros(4, np.int32))
    assert "1 of 8 threads of block (2, 0, 0) at pause" in str(caught.value)
    assert "7 of 8 threads of block (2, 0, 0) at syncthreads" in str(caught.value)
    assert "block (0, 0, 0)" not in str(caught.value)  # it went on, as block 1 came


# ------------------------------------------------------------------------------------------------ what threads raise
@any_order
def test_an_exception_names_block_and_thread(seed):
    @cuda.jit
    def failing_kernel(x):
        cuda.syncthreads()
        if cuda.blockIdx.y == 1 and cuda.threadIdx.x == 2:
            x[99] = 0
        cuda.syncthreads()

    named = r"failing_kernel: block \(0, 1, 0\), thread \(2, 0, 0\) raised IndexError: .*99"
    with simulator.schedule(seed), pytest.raises(RuntimeError, match=named) as caught:
        launch(failing_kernel, (1, 2), 4, np.zeros(4))
    assert isinstance(caught.value.__cause__, IndexError)


# ------------------------------------------------------------------------------------------------------------ around


def test_without_greenlet_the_engine_says_what_to_install(monkeypatch):
    monkeypatch.setattr(install, "find_spec", lambda name: None if name == "greenlet" else name)
    assert install.command("sim") in engines.why_not("sim")
    with pytest.raises(RuntimeError, match=r'device \'sim\' cannot be used: greenlet .*\[sim\]"'):
        engines.get("sim")


def test_after_an_error_threads_are_unwound_and_numba_is_as_before():
    unwound, names = [], set(vars(cuda))

    @cuda.jit
    def unwinding_kernel(x):
        try:
            cuda.syncthreads()
            if cuda.threadIdx.x == 0:
                raise ValueError("on purpose")
            cuda.syncthreads()
        finally:
            unwound.append(cuda.grid)

    with pytest.raises(RuntimeError, match="on purpose"):
        launch(unwinding_kernel, 1, 4, np.zeros(1))
    assert len(unwound) == 4 and set(vars(cuda)) == names
    assert wavefront_is_right(0)


@any_order
def test_atomics(seed):
    @cuda.jit
    def atomic_kernel(numbers, taken):
        i = cuda.grid(1)
        cuda.atomic.add(numbers, 0, i)
        cuda.atomic.max(numbers, 1, i)
        cuda.atomic.min(numbers, 2, i)
        cuda.atomic.or_(numbers, 3, 1 << i)
        taken[cuda.atomic.inc(numbers, 4, 100)] += 1
        while cuda.atomic.cas(numbers, 5, 0, 1) != 0:
            pass
        before = numbers[6]
        cuda.nanosleep(20)
        numbers[6] = before + 1
        cuda.atomic.exch(numbers, 5, 0)

    numbers, taken = np.zeros(7, np.int32), np.zeros(12, np.int32)
    with simulator.schedule(seed):
        launch(atomic_kernel, 3, 4, numbers, taken)
    assert numbers.tolist() == [66, 11, 0, 2**12 - 1, 12, 0, 12] and (taken == 1).all()


@any_order
def test_shuffles(seed):
    @cuda.jit
    def shuffle_kernel(out):
        i = cuda.threadIdx.x
        value, everybody = 100 * (i // 32) + i % 32, 0xFFFFFFFF
        out[0, i] = cuda.shfl_sync(everybody, value, 35)  # modulo 32
        out[1, i] = cuda.shfl_xor_sync(everybody, value, 5)

    out, lane, first = np.full((2, 64), -1), np.arange(64) % 32, np.arange(64) // 32 * 100
    with simulator.schedule(seed):
        launch(shuffle_kernel, 1, 64, out)
    np.testing.assert_array_equal(out, [first + 3, first + (lane ^ 5)])
