"""What kernels call, in the simulator: barriers, indices, shuffles, memory, atomics."""

import numpy as np
import pytest
from numba import cuda
from threads import SEEDS, any_order, launch

from numbarnn.cuda import simulator

# ------------------------------------------------------------------------------------------------------------- warps


@pytest.mark.parametrize(
    "mask, source, message",
    [
        (0xFFFFFFFF, 8, "reads from lane 8, which"),
        (0x7F, 0, r"thread \(7, 0, 0\) raised .* lane 7 takes part, but the mask 0x7f leaves it out"),
    ],
)
def test_shuffles_with_lanes_that_take_no_part(mask, source, message):
    @cuda.jit
    def beyond_kernel(out):
        out[cuda.threadIdx.x] = cuda.shfl_sync(mask, out[cuda.threadIdx.x], source)

    with pytest.raises(RuntimeError, match=message):
        launch(beyond_kernel, 1, 8, np.zeros(8))


# ------------------------------------------------------------------------------------------------------------ memory


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


def test_a_lost_update_shows():
    @cuda.jit
    def racing_kernel(count):
        before = count[0]
        cuda.nanosleep(20)
        count[0] = before + 1

    for seed in SEEDS:
        count = np.zeros(1, np.int32)
        with simulator.schedule(seed):
            launch(racing_kernel, 2, 4, count)
        assert count[0] < 8


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
