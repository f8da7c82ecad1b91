"""The emulated GPU itself (tests/fakes/emulator): threads, memory, what blocks see of each other, what it must catch.

What runs on it: tests/test_emulated.py.
"""

import numpy as np
import pytest

from emulator import machine
from emulator.machine import DeviceError
from emulator.memory import Memory

THREADS = 64


def ptx(body, registers="", before=""):
    """A kernel with one parameter, an address: %rd1; %r1 is the thread's number, %rd2 its own 8 bytes' address."""
    return f"""
.version 8.8
.target sm_90
.address_size 64
{before}
.visible .entry kernel(.param .u64 kernel_param_0)
{{
    .reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .f32 %f<20>; .reg .f64 %fd<20>;
    {registers}
    ld.param.u64 %rd9, [kernel_param_0];
    cvta.to.global.u64 %rd1, %rd9;
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 8;
    add.s64 %rd2, %rd1, %rd3;
    {body}
    ret;
}}
"""


def run(text, values, *, grid=1, threads=THREADS, order=None, dynamic_bytes=0, cooperative=False, seed=0):
    """The array after the kernel, which gets its address."""
    memory = Memory(1 << 20)
    address = memory.allocate(values.nbytes)
    memory.array(address, values.dtype, values.shape)[...] = values
    parameters = [np.uint64(address).tobytes()]
    order = None if order is None else np.random.default_rng(order)
    sizes = (grid, 1, 1), (threads, 1, 1)
    machine.load(text).launch(memory, *sizes, parameters, dynamic_bytes, cooperative, order, seed)
    return memory.array(address, values.dtype, values.shape).copy()


# ------------------------------------------------------------------------------------------------------------ threads
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


# ------------------------------------------------------------------------------------------------ what blocks see
MESSAGE = """
    mov.u32 %r4, %ctaid.x; setp.eq.s32 %p1, %r4, 0; @%p1 bra WAITS;
    {store} [%rd2], 7; {fence} st.relaxed.gpu.global.u32 [%rd2+512], 1; bra.uni DONE;
    WAITS: {flag} %r5, [%rd2+512]; setp.ne.s32 %p2, %r5, 1; @%p2 bra WAITS;
    {fence_after} {load} %r6, [%rd2]; st.global.u32 [%rd2+1024], %r6;
    DONE:
"""
RELAXED = {
    "store": "st.relaxed.gpu.global.u32",
    "load": "ld.relaxed.gpu.global.u32",
    "flag": "ld.relaxed.gpu.global.u32",
}
FENCE = {"fence": "fence.acq_rel.gpu;", "fence_after": "fence.acq_rel.gpu;"}


def received(seed, order=None, **parts):
    """What the first block's threads read of the second's numbers, which are 7, as soon as they see its flags."""
    body = MESSAGE.format_map({"fence": "", "fence_after": ""} | RELAXED | parts)
    found = run(ptx(body), np.zeros(3 * THREADS, np.uint64), grid=2, order=order, cooperative=True, seed=seed)
    return found[2 * THREADS :]


def test_a_flag_says_nothing_about_other_numbers_without_fences():
    """Data, then a flag: without a fence on either side some data are not there yet, for many seeds."""
    for missing in ({"fence": "", "fence_after": ""}, {"fence": ""}, {"fence_after": ""}):
        found = [set(received(seed, **FENCE | missing)) for seed in range(20)]
        assert found.count({0, 7}) >= 2 and found.count({7}) + found.count({0, 7}) == 20
    for seed in range(20):
        assert set(received(seed, order=seed if seed % 2 else None, **FENCE)) == {7}
        assert (received(seed) == received(seed)).all()


@pytest.mark.parametrize("order", [None, 0, 1])
def test_data_may_be_their_own_flags(order):
    """Nothing but the numbers themselves is waited for, and each seed gives the same."""
    body = """
    mov.u32 %r4, %ctaid.x; setp.eq.s32 %p1, %r4, 0; @%p1 bra WAITS;
    st.relaxed.gpu.global.u32 [%rd2], %r1; add.u32 %r7, %r1, 100; st.relaxed.gpu.global.u32 [%rd2+4], %r7; bra.uni DONE;
    WAITS: ld.relaxed.gpu.global.v2.u32 {%r5, %r6}, [%rd2];
    max.u32 %r7, %r5, %r6; setp.eq.u32 %p2, %r7, 0xFFFFFFFF; @%p2 bra WAITS;
    add.u32 %r5, %r5, %r6; st.global.u32 [%rd2+512], %r5;
    DONE:
    """
    values = np.full(2 * THREADS, 2**64 - 1, np.uint64)
    for seed in range(10):
        found = run(ptx(body), values, grid=2, order=order, cooperative=True, seed=seed)[THREADS:]
        assert (found.view(np.uint32)[::2] == 2 * np.arange(THREADS) + 100).all()
