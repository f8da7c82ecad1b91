"""Kernel.bind on a GPU: what kernels compute, streams, graphs, shared memory, cooperative launches."""

import math
import threading

import numpy as np
import pytest
from numba import cuda

from numbarnn.cuda.launch import Kernel, LaunchConfig


@pytest.fixture
def cupy(monkeypatch, tmp_path):
    """CuPy, where it has a device."""
    monkeypatch.setenv("NUMBARNN_CACHE_DIR", str(tmp_path))
    module = pytest.importorskip("cupy")
    try:
        module.zeros(1)
    except module.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"no GPU: {error}")
    return module


def gpu_kernel(out, a, pair, factor, t):
    """out[b, j] = tanh(a[t, b, j] factor) + pair[0][j] - pair[1]; 2-D grid-stride."""
    for b in range(cuda.blockIdx.y, out.shape[0], cuda.gridDim.y):
        for j in range(cuda.grid(1), out.shape[1], cuda.gridsize(1)):
            out[b, j] = math.tanh(a[t, b, j] * factor) + pair[0][j] - pair[1]


@pytest.mark.gpu
@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
def test_gpu_computes(cupy, strided):
    rng = np.random.default_rng(0)
    a = cupy.asarray(rng.standard_normal((5, 7, 66), dtype=np.float32))
    bias = cupy.asarray(rng.standard_normal(66, dtype=np.float32))
    out = cupy.full((7, 66), np.nan, np.float32)
    if strided:
        a, bias, out = a[:, :, ::2], bias[::-2], out[:, 33:]
    else:
        a, bias, out = a[:, :, :33].copy(), bias[:33].copy(), out[:, :33].copy()
    step = Kernel(cuda.jit(gpu_kernel)).bind(
        LaunchConfig(grid=(2, 3), block=32), out, a, (bias, np.float32(0.25)), np.float32(0.5)
    )
    for t in (4, 0):
        step(t)
        expected = np.tanh(cupy.asnumpy(a[t]) * np.float32(0.5)) + cupy.asnumpy(bias) - np.float32(0.25)
        # tanh is right to 2 units in the last place of 1, here and there; two sums below 4 are rounded, twice
        np.testing.assert_allclose(cupy.asnumpy(out), expected, rtol=0, atol=8 * np.finfo(np.float32).eps)


def chain_kernel(x, t):
    i = cuda.grid(1)
    if i < x.shape[0]:
        x[i] = x[i] * 3 + t


@pytest.mark.gpu
def test_gpu_follows_the_current_stream_and_records_graphs(cupy):
    x = cupy.zeros(1000, np.int32)
    step = Kernel(cuda.jit(chain_kernel)).bind(LaunchConfig(8, 128), x)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for t in range(5):
            step(t)
    stream.synchronize()
    expected = 0
    for t in range(5):
        expected = expected * 3 + t
    assert (cupy.asnumpy(x) == expected).all()

    with stream:
        x.fill(0)
        stream.begin_capture()
        for t in range(5):
            step(t)  # the ints are copied into the graph, so the next call may overwrite them
        graph = stream.end_capture()
        graph.launch()
    stream.synchronize()
    assert (cupy.asnumpy(x) == expected).all()


def shared_kernel(out, words):
    tile = cuda.shared.array(0, np.uint32)
    for i in range(cuda.threadIdx.x, words, cuda.blockDim.x):
        tile[words - 1 - i] = i
    cuda.syncthreads()
    for i in range(cuda.threadIdx.x, words, cuda.blockDim.x):
        out[i] = tile[i]


@pytest.mark.gpu
def test_gpu_dynamic_shared_memory_beyond_48_kb(cupy):
    words = cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"] // 4
    out = cupy.zeros(words, np.uint32)
    kernel = Kernel(cuda.jit(shared_kernel))
    kernel.bind(LaunchConfig(1, 256, shared_bytes=4 * words), out)(words)
    np.testing.assert_array_equal(cupy.asnumpy(out), np.arange(words)[::-1])
    with pytest.raises(RuntimeError, match=f"kernel shared_kernel .* device 0 allows {4 * words} bytes"):
        kernel.bind(LaunchConfig(1, 256, shared_bytes=4 * words + 1024), out)


@pytest.mark.gpu
def test_gpu_cooperative_launch(cupy):

    @cuda.jit
    def all_meet_kernel(x):
        """Every block waits (not for ever) until all have come: x[0] blocks; x[1 + block] = 1."""
        if cuda.threadIdx.x == 0:
            cuda.atomic.add(x, 0, 1)
            for _ in range(1_000_000):
                if cuda.atomic.add(x, 0, 0) == cuda.gridDim.x:
                    x[1 + cuda.blockIdx.x] = 1
                    break

    x = cupy.zeros(2000, np.int32)
    kernel = Kernel(all_meet_kernel)
    kernel.bind(LaunchConfig(16, 64, cooperative=True), x)()
    assert cupy.asnumpy(x)[:18].tolist() == [16] + [1] * 16 + [0]
    too_large = kernel.bind(LaunchConfig(10**6, 64, cooperative=True), x)
    fit = too_large.resident_blocks()
    assert 16 <= fit < 10**6
    with pytest.raises(RuntimeError, match=f"{fit} such blocks fit.*COOPERATIVE_LAUNCH_TOO_LARGE"):
        too_large()


@pytest.mark.gpu
def test_gpu_empty_arrays_and_other_threads(cupy):
    Kernel(cuda.jit(chain_kernel)).bind(LaunchConfig(1, 32), cupy.zeros(0, np.int32))(1)
    x = cupy.ones(32, np.int32)
    step = Kernel(cuda.jit(chain_kernel)).bind(LaunchConfig(1, 32), x)
    thread = threading.Thread(target=step, args=(4,))
    thread.start()
    thread.join()
    cupy.cuda.Device().synchronize()
    assert (cupy.asnumpy(x) == 7).all()
