"""The emulated GPU itself (tests/fakes/emulator): instructions against Python's numbers, threads, memory, what it must
catch.

What runs on it: tests/test_emulated.py.
"""

import numpy as np
import pytest

from emulated_program import THREADS, ptx, run
from emulator import machine
from emulator.machine import DeviceError
from emulator.memory import BASE, Memory

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
