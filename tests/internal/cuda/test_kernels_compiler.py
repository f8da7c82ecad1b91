"""compile_kernel: what comes out, for which devices, and what is kept on disk."""

import math
import threading

import numpy as np
import pytest
from numba import cuda, types

from numbarnn.common import code_cache
from numbarnn.cuda import compiler, patches

FLOAT_1D = types.Array(types.float32, 1, "C")
FLOAT_2D = types.Array(types.float32, 2, "A")
SIGNATURE = (FLOAT_1D, FLOAT_2D, types.float32, types.int32)


@pytest.fixture(autouse=True)
def fresh_cache(monkeypatch, tmp_path):
    """An empty cache on disk, none in the process; skips where there is no CUDA compiler."""
    monkeypatch.setenv("NUMBARNN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiler, "_compiled", {})
    monkeypatch.setattr(code_cache, "_warned", False)
    try:
        compiler.toolchain()
    except RuntimeError as error:
        pytest.skip(str(error))
    return tmp_path


def make_kernel(activation=math.tanh, bias=0.5, **options):
    """A kernel that closes over a device function, which closes over `activation` and a constant."""
    bias = np.float32(bias)

    @cuda.jit(device=True)
    def squash(x):
        return activation(x) * math.exp(x) + bias

    @cuda.jit(**options)
    def sample_kernel(out, x, scale, column):
        i = cuda.grid(1)
        if i < out.shape[0]:
            out[i] = squash(x[i, column]) * scale + x[i, 0]

    return sample_kernel


def forget_process_cache():
    """As a new process would find things."""
    compiler._compiled.clear()


# --------------------------------------------------------------------------------------------- what comes out


def test_resources_are_reported():
    @cuda.jit(launch_bounds=128)
    def shared_kernel(out):
        tile = cuda.shared.array(256, types.float32)
        i = cuda.threadIdx.x
        tile[i] = out[i]
        cuda.syncthreads()
        out[i] = tile[255 - i]

    @cuda.jit(max_registers=24)
    def spilling_kernel(out):
        values = cuda.local.array(96, types.float32)
        for k in range(96):
            values[k] = out[k]
        cuda.syncthreads()
        for k in range(96):
            out[95 - k] = values[k] * values[95 - k]

    assert compiler.compile_kernel(shared_kernel, (FLOAT_1D,), (9, 0)).shared_bytes == 1024
    assert ".maxntid 128" in compiler.ptx(shared_kernel, (FLOAT_1D,), (9, 0))
    spilling = compiler.compile_kernel(spilling_kernel, (FLOAT_1D,), (9, 0))
    assert spilling.registers <= 24
    assert spilling.spill_bytes + spilling.stack_bytes > 0


def test_numba_is_left_as_it_was(monkeypatch):
    from numba.cuda import dispatcher

    def original():
        return "the current device"

    monkeypatch.setattr(dispatcher, "get_current_device", original)
    names = set(dir(np))
    answers = []
    with patches.device_for_numba((7, 7)):
        assert dispatcher.get_current_device().compute_capability == (7, 7)
        thread = threading.Thread(target=lambda: answers.append(dispatcher.get_current_device()))
        thread.start()
        thread.join()
    assert answers == ["the current device"]  # other threads are not told a lie
    with pytest.raises(KeyError), patches.device_for_numba((7, 7)), patches.numpy_for_numba():
        raise KeyError
    assert dispatcher.get_current_device is original
    assert set(dir(np)) == names


def test_device_newer_than_the_compiler():
    with pytest.raises(RuntimeError, match=r"sample_kernel: the newest device .* sm_990; upgrade"):
        compiler.compile_kernel(make_kernel(), SIGNATURE, (99, 0))


def test_ptx_of_a_version_that_the_linker_does_not_know_is_linked_as_one_that_it_knows():
    text = ".version 99.9\n.target sm_90\n.address_size 64\n.visible .entry k() { ret; }\n"
    cubin, _ = compiler._link(text, "k", (9, 0), {"max_registers": None, "lineinfo": False})
    assert cubin[:4] == b"\x7fELF"
    with pytest.raises(RuntimeError, match="linking kernel k for sm_90 failed"):
        compiler._link(text.replace("ret;", "nonsense;"), "k", (9, 0), {"max_registers": None, "lineinfo": False})


def test_a_named_toolchain_needs_no_compiler(monkeypatch):
    """Kernels that another machine has compiled are found where nothing can be compiled, whatever is installed."""
    monkeypatch.setenv(compiler.TOOLCHAIN, "carried")
    compiler.toolchain.cache_clear()
    try:
        compiled = compiler.compile_kernel(make_kernel(), SIGNATURE, (9, 0))
        forget_process_cache()
        for name in ("_library_versions", "_ptx"):
            monkeypatch.setattr(compiler, name, lambda *_: pytest.fail("not needed"))
        compiler.toolchain.cache_clear()
        assert compiler.toolchain() == "carried"
        assert compiler.compile_kernel(make_kernel(), SIGNATURE, (9, 0)) == compiled
    finally:
        compiler.toolchain.cache_clear()


def test_missing_toolchain_says_what_to_install(monkeypatch):
    def not_found():
        raise ImportError("libnvJitLink.so.12 not found")

    monkeypatch.setattr(compiler, "_library_versions", not_found)
    compiler.toolchain.cache_clear()
    for function in (compiler.compile_kernel, compiler.ptx):
        with pytest.raises(RuntimeError, match=r'libnvJitLink.*pip install .*\[cuda12\]".*\[cuda13\]'):
            function(make_kernel(), SIGNATURE, (9, 0))


# ------------------------------------------------------------------------------------------------- the cache
def test_second_process_reads_from_disk(fresh_cache, monkeypatch):
    compiled = compiler.compile_kernel(make_kernel(), SIGNATURE, (9, 0))
    assert len(list(fresh_cache.glob("*.cubin"))) == 1
    forget_process_cache()
    monkeypatch.setattr(compiler, "_ptx", lambda *_: pytest.fail("compiled again"))
    assert compiler.compile_kernel(make_kernel(), SIGNATURE, (9, 0)) == compiled
