"""How compiled kernels access what blocks exchange, and what LLVM is told of instructions that warps make together.

The same checks (ptx_checks) run on every persistent kernel in test_kernels.py.
"""

from contextlib import nullcontext

import numpy as np
import pytest
from numba import cuda, float32, types, uint32

import ptx_checks
from numbarnn.compile import storage
from numbarnn.cuda import compiler, ptx
from numbarnn.kernels.persistent import exchange

pytestmark = pytest.mark.usefixtures("toolchain_installed")
FORMS = {  # (dtype, aligned) -> loads, stores
    ("float32", True): ("v4.u32", "f32"),
    ("float16", True): ("v4.u32", "u32"),
    ("bfloat16", True): ("v4.u32", "u32"),
    ("float32", False): ("f32", "f32"),
    ("float16", False): ("u16", "u16"),
    ("bfloat16", False): ("u16", "u16"),
}


@pytest.mark.parametrize("dtype, aligned", FORMS, ids=lambda value: {True: "aligned", False: "any"}.get(value))
def test_numbers_are_exchanged_by_relaxed_accesses_of_the_device(dtype, aligned):
    """The device functions by which blocks load and publish, of every dtype: nothing else touches the array."""
    load, publish = exchange.make_load(dtype, aligned, whole=False), exchange.make_publish(dtype, aligned)
    load_missing = exchange.make_load_missing(dtype, aligned, whole=False)
    narrow = storage.narrow(dtype)

    @cuda.jit
    def kernel(numbers, words, value, left):
        i = cuda.grid(1)
        publish(numbers, 8 * i, narrow(value), i < left)
        four = load(numbers, 8 * i, left - i, 0)
        four = load_missing(numbers, 8 * i, left - i, 0, four)
        for k in range(4):
            words[i, k] = four[k]

    stored = types.uint16 if dtype in ("float16", "bfloat16") else getattr(types, dtype)
    text = compiler.ptx(kernel, (stored[::1], uint32[:, ::1], types.float32, types.int64), (9, 0))
    program = ptx_checks.Program(text)
    loaded, published = FORMS[dtype, aligned]
    loads, stores = {f"ld.relaxed.gpu.global.{loaded}"}, {f"st.relaxed.gpu.global.{published}"}
    assert set(ptx_checks.accesses(program, {program.parameters[4][0]})) == loads | stores
    assert ptx_checks.promised_accesses(dtype, aligned) == (loads, stores)


@pytest.mark.parametrize("short", (False, True))
def test_offsets_of_32_bits_are_found(short):
    """In the check of all kernels, `require_long_offsets`."""

    @cuda.jit
    def kernel(out, n):
        offset = cuda.grid(1) * n
        out[np.uint32(np.uint32(cuda.grid(1)) * np.uint32(n)) if short else offset] = 1

    text = compiler.ptx(kernel, (float32[::1], types.int32), (9, 0))
    with pytest.raises(AssertionError, match=r"mul\.lo") if short else nullcontext():
        ptx_checks.require_long_offsets(text)


@pytest.fixture
def written_ir(monkeypatch):
    """The LLVM IR of the modules that are compiled during a test."""
    from numba.cuda.cudadrv import nvvm

    modules, compile_ir = [], nvvm.compile_ir

    def record(text, **options):
        modules.extend([text] if isinstance(text, str) else text)
        return compile_ir(text, **options)

    monkeypatch.setattr(nvvm, "compile_ir", record)
    return modules


def test_what_warps_make_together_is_convergent(written_ir):
    """mma of each kind, shuffles and barriers, and functions that call them: in the IR that Numba hands to NVVM."""

    @cuda.jit(device=True)
    def shuffled(value):
        cuda.syncwarp()
        return cuda.shfl_xor_sync(0xFFFFFFFF, value, 1)

    @cuda.jit
    def kernel(out, words):
        a, b, c = (words[0], words[1], words[2], words[3]), (words[4], words[5]), (out[0], out[1], out[2], out[3])
        for found in (ptx.mma_float16(a, b, c), ptx.mma_bfloat16(a, b, c), ptx.mma_tf32(a, b, c)):
            out[cuda.threadIdx.x] += shuffled(found[0])
        cuda.syncthreads()

    compiler.ptx(kernel, (float32[::1], uint32[::1]), (9, 0))
    ptx_checks.require_convergent(written_ir)
    lines = "\n".join(written_ir).splitlines()
    for name in ("f32.f16", "f32.bf16", "f32.tf32", "@llvm.nvvm.shfl.sync", "@llvm.nvvm.bar.warp.sync", "define"):
        marked = [line for line in lines if name in line.replace('"', "") and "convergent" in line]
        assert marked, f"no {name} in the IR"
        with pytest.raises(AssertionError, match="not convergent"):
            ptx_checks.require_convergent([marked[0].replace(" convergent", "")])
