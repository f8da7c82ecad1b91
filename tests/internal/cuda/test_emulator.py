"""The emulated GPU itself (tests/fakes/emulator): instructions against Python's numbers, threads, memory, what it must
catch.

What runs on it: tests/test_emulated.py.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from numba import cuda, types

from emulated_program import THREADS, ptx, run
from emulator import machine
from emulator.machine import DeviceError
from emulator.memory import BASE, Memory
from numbarnn.cuda import compiler


def signed(value, bits):
    value %= 1 << bits
    return value - (value >> (bits - 1) << bits)


INTEGERS = [
    0,
    1,
    2,
    5,
    31,
    32,
    63,
    64,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    2**63,
    2**64 - 1,
    2**64 - 7,
    0x123456789ABCDEF,
]
OF_TWO = {
    "add.s64": lambda a, b: a + b,
    "sub.s64": lambda a, b: a - b,
    "mul.lo.s64": lambda a, b: a * b,
    "mul.hi.u64": lambda a, b: (a * b) >> 64,
    "mul.hi.s64": lambda a, b: (signed(a, 64) * signed(b, 64)) >> 64,
    "div.s64": lambda a, b: math.trunc(Fraction(signed(a, 64), signed(b, 64))),
    "rem.s64": lambda a, b: signed(a, 64) - signed(b, 64) * math.trunc(Fraction(signed(a, 64), signed(b, 64))),
    "div.u64": lambda a, b: a // b,
    "min.s64": lambda a, b: min(signed(a, 64), signed(b, 64)),
    "max.u64": lambda a, b: max(a, b),
    "and.b64": lambda a, b: a & b,
    "xor.b64": lambda a, b: a ^ b,
}


@pytest.mark.parametrize("name", OF_TWO)
def test_integers(name):
    for b in INTEGERS:
        if b == 0 and name[:3] in ("div", "rem"):
            continue
        text = ptx(f"ld.global.u64 %rd4, [%rd2]; {name} %rd5, %rd4, {b}; st.global.u64 [%rd2], %rd5;")
        found = run(text, np.array(INTEGERS, np.uint64), threads=len(INTEGERS))
        assert found.tolist() == [OF_TWO[name](a, b) % 2**64 for a in INTEGERS]


@pytest.mark.parametrize("amount", [0, 1, 31, 32, 63, 64, 200])
def test_shifts(amount):
    """By a constant and by a register; too large amounts shift everything out."""
    values = np.array(INTEGERS, np.uint64)
    for name, exact in {
        "shl.b64": lambda a: a << amount,
        "shr.u64": lambda a: a >> amount,
        "shr.s64": lambda a: signed(a, 64) >> amount,
    }.items():
        for operand in (str(amount), "%r5"):
            text = ptx(
                f"mov.u32 %r5, {amount}; ld.global.u64 %rd4, [%rd2]; {name} %rd5, %rd4, {operand};"
                "st.global.u64 [%rd2], %rd5;"
            )
            assert run(text, values, threads=len(values)).tolist() == [exact(a) % 2**64 for a in INTEGERS]


def test_fma_is_rounded_once():
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(size=THREADS - 2), [1 + 2.0**-52, 1e300]])
    text = ptx(
        "ld.global.f64 %fd1, [%rd2]; mul.f64 %fd2, %fd1, %fd1; neg.f64 %fd2, %fd2;"
        "fma.rn.f64 %fd3, %fd1, %fd1, %fd2; st.global.f64 [%rd2], %fd3;"
    )  # the product's rounding error, exactly
    exact = [
        float(Fraction(v) ** 2 - Fraction(float(np.float64(v) * v))) if abs(v) < 1e100 else math.nan for v in values
    ]
    found = run(text, values)
    np.testing.assert_array_equal(found[:-1], exact[:-1])
    assert not np.isfinite(found[-1])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_numba_writes_for_functions(toolchain_installed, dtype):
    """exp, tanh, ... of libdevice, divisions and conversions, compiled by Numba: as NumPy computes them."""

    @cuda.jit
    def kernel(out, x, k):
        i = cuda.grid(1)
        if i < x.shape[0]:
            v = x[i]
            out[i, 0], out[i, 1], out[i, 2] = math.exp(v), math.tanh(v), math.log1p(abs(v))
            out[i, 3], out[i, 4], out[i, 5] = math.sqrt(abs(v)), math.floor(v), v / (v * v + 1)
            out[i, 6], out[i, 7] = k[i] // 7 - k[i] % 13, (k[i] * 2654435761) & 0xFFFF

    x = np.linspace(-20, 20, 200).astype(dtype)
    k = np.arange(-100, 100)
    text = compiler.ptx(
        kernel,
        (types.Array(types.float64, 2, "C"), types.Array(getattr(types, dtype), 1, "C"), types.int64[::1]),
        (9, 0),
    )
    memory = Memory(1 << 20)
    parameters, places = [], []
    for array in (np.zeros((200, 8)), x, k):
        places.append(memory.allocate(array.nbytes))
        memory.array(places[-1], array.dtype, array.shape)[...] = array
        numbers = (0, 0, array.size, array.itemsize, places[-1], *array.shape, *array.strides)
        parameters += [np.int64(number).tobytes() for number in numbers]
    machine.load(text).launch(memory, (7, 1, 1), (32, 1, 1), parameters)
    wide = x.astype(np.float64)
    exact = [
        np.exp(wide),
        np.tanh(wide),
        np.log1p(abs(wide)),
        np.sqrt(abs(wide)),
        np.floor(wide),
        wide / (wide * wide + 1),
    ]
    exact += [k // 7 - k % 13, (k * 2654435761) & 0xFFFF]
    found = memory.array(places[0], np.float64, (200, 8))
    for column, values in enumerate(exact):
        np.testing.assert_allclose(found[:, column], values, rtol=8 * np.finfo(dtype).eps, atol=1e-300)


# ------------------------------------------------------------------------------------------------------------ threads
LOOP = "mov.u32 %r2, 0; AGAIN: add.s32 %r2, %r2, %r1; add.s32 %r3, %r3, 1; setp.le.s32 %p1, %r3, %r1; @%p1 bra AGAIN;"


@pytest.mark.parametrize("order", [None, 0, 1])
def test_threads_part_and_meet_again(order):
    """A loop of another length for each thread, then sums over warps."""
    body = f"mov.u32 %r3, 0; {LOOP}" + "".join(
        f"shfl.sync.bfly.b32 %r5|%p2, %r2, {1 << k}, 31, -1; add.s32 %r2, %r2, %r5;" for k in range(5)
    )
    found = run(
        ptx(f"{body} cvt.u64.u32 %rd4, %r2; st.global.u64 [%rd2], %rd4;"), np.zeros(THREADS, np.uint64), order=order
    )
    turns = np.arange(THREADS) * (np.arange(THREADS) + 1)
    assert found.tolist() == np.repeat(turns.reshape(-1, 32).sum(axis=1), 32).tolist()


REVERSED = """
    mov.u32 %r2, numbers; mul.lo.s32 %r3, %r1, 4; add.s32 %r4, %r2, %r3; st.shared.u32 [%r4], %r1;
    {barrier}
    sub.s32 %r5, 63, %r1; mul.lo.s32 %r5, %r5, 4; add.s32 %r6, %r2, %r5; ld.shared.u32 %r7, [%r6];
    cvt.u64.u32 %rd4, %r7; st.global.u64 [%rd2], %rd4;
"""
SHARED = ".shared .align 4 .b8 numbers[256];"


@pytest.mark.parametrize("order", [None, 0, 1])
def test_a_barrier_and_what_its_lack_does(order):
    text = ptx(REVERSED.format(barrier="bar.sync 0;"), before=SHARED)
    reverse = np.arange(THREADS)[::-1].tolist()
    assert run(text, np.zeros(THREADS, np.uint64), order=order).tolist() == reverse
    for barrier in ("BLOCK:", "bar.warp.sync -1;"):
        text = ptx(REVERSED.format(barrier=barrier), before=SHARED)
        with pytest.raises(DeviceError, match=r"the shared memory that thread \d+ (wrote|read), without a barrier"):
            run(text, np.zeros(THREADS, np.uint64), order=order)


WITHIN_WARPS = """
    mov.u32 %r2, numbers; mul.lo.s32 %r3, %r1, 4; add.s32 %r4, %r2, %r3; xor.b32 %r5, %r3, 4; add.s32 %r6, %r2, %r5;
    st.shared.u32 [%r4], %r1; {written} ld.shared.u32 %r7, [%r6]; {read} st.shared.u32 [%r4], %r7;
    cvt.u64.u32 %rd4, %r7; st.global.u64 [%rd2], %rd4;
"""
SHUFFLE = "shfl.sync.bfly.b32 %r8|%p2, %r1, 1, 31, -1;"


@pytest.mark.parametrize("barrier", ["bar.warp.sync -1;", "bar.sync 0;"])
def test_lanes_of_a_warp_need_a_barrier_before_reading_and_before_writing_again(barrier):
    def numbers(written, read):
        text = ptx(WITHIN_WARPS.format(written=written, read=read), before=SHARED)
        return run(text, np.zeros(THREADS, np.uint64)).tolist()

    assert numbers(barrier, barrier) == (np.arange(THREADS) ^ 1).tolist()
    for lack in ("", SHUFFLE):
        with pytest.raises(DeviceError, match=r"thread 0 accesses by ld\.shared\.u32 .* thread 1 wrote, without"):
            numbers(lack, barrier)
        with pytest.raises(DeviceError, match=r"thread 0 accesses by st\.shared\.u32 .* thread 1 read, without"):
            numbers(barrier, lack)


@pytest.mark.parametrize("order", [None, 0, 1])
def test_a_block_waits_for_another(order):
    """The first block polls a flag that the last one sets."""
    body = """
    mov.u32 %r4, %ctaid.x; setp.eq.s32 %p1, %r4, 0; @%p1 bra WAITS;
    st.relaxed.gpu.global.u32 [%rd2], 7; bra.uni DONE;
    WAITS: ld.relaxed.gpu.global.u32 %r5, [%rd2]; setp.ne.s32 %p2, %r5, 7; @%p2 bra WAITS;
    st.global.u32 [%rd2+4], 8;
    DONE:
    """
    found = run(ptx(body), np.zeros(THREADS, np.uint64), grid=2, order=order, cooperative=True)
    assert (found == 7 + (8 << 32)).all()


def test_waiting_in_vain_is_found(monkeypatch):
    monkeypatch.setattr(machine, "IDLE_ROUNDS", 50)
    body = "WAITS: ld.relaxed.gpu.global.u32 %r5, [%rd2]; setp.ne.s32 %p2, %r5, 7; @%p2 bra WAITS;"
    with pytest.raises(DeviceError, match="nobody writes"):
        run(ptx(body), np.zeros(THREADS, np.uint64))


# ------------------------------------------------------------------------------------------------------------- memory
@pytest.mark.parametrize("body, said", [
    ("st.global.u64 [%rd2+8], %rd2;", r"thread 63 of block 0 writes 8 bytes at .* \(global\).*1 threads"),
    ("ld.global.u64 %rd4, [%rd2+-8];", "thread 0 of block 0 reads 8 bytes"),
    ("ld.global.u32 %r4, [%rd2+2];", "misaligned"),
    ("ld.global.u32 %r4, [%r1];", "reads 4 bytes at 0x0"),
    ("cvt.u32.u64 %r4, %rd2; st.global.u32 [%r4], %r4;", "writes 4 bytes"),
    ("mov.u32 %r2, numbers; st.shared.u32 [%r2+100000], %r2;", r"\(shared\)"),
], ids=["beyond", "before", "misaligned", "null", "cut to 32 bits", "shared"])  # fmt: skip
def test_wrong_addresses_are_found(body, said):
    with pytest.raises(DeviceError, match=said):
        run(ptx(body, before=SHARED), np.zeros(THREADS, np.uint64))


def test_freed_memory_is_not_touched():
    memory = Memory(1 << 16)
    address = memory.allocate(8 * THREADS)
    kernel, parameters = machine.load(ptx("st.global.u64 [%rd2], %rd2;")), [np.uint64(address).tobytes()]
    kernel.launch(memory, (1, 1, 1), (THREADS, 1, 1), parameters)
    assert memory.array(address, np.uint64, (2,)).tolist() == [address, address + 8]
    memory.free(address, 8 * THREADS)
    with pytest.raises(DeviceError, match="not allocated; 64 threads"):
        kernel.launch(memory, (1, 1, 1), (THREADS, 1, 1), parameters)
    assert memory.allocate(8 * THREADS) == address and address >= BASE


def test_unknown_instructions_are_refused():
    with pytest.raises(NotImplementedError, match="bfind"):
        run(ptx("bfind.u32 %r4, %r1;"), np.zeros(THREADS, np.uint64))
