"""What blocks on the emulated GPU see of each other's numbers: with fences and without, by which loads and stores."""

import numpy as np
import pytest

from emulated_program import THREADS, ptx, run
from emulator.machine import DeviceError

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


@pytest.mark.parametrize("parts, said", [
    ({"load": "ld.relaxed.cta.global.u32"}, r"block 0 reads by ld.relaxed.cta.global.u32, .* block 1"),
    ({"load": "ld.global.nc.u32"}, "reads by ld.global.nc.u32"),
    ({"load": "ld.global.u32"}, "by ld.global.u32"),
    ({"store": "st.global.u32"}, "in the same launch by st.global.u32"),
    ({"store": "st.relaxed.cta.global.u32"}, "by st.relaxed.cta.global.u32, at byte"),
    ({"flag": "ld.relaxed.cta.global.u32"}, "reads by ld.relaxed.cta.global.u32"),
    ({"store": "st.relaxed.gpu.global.u16"}, "of the same element"),
], ids=["load's scope", "constant", "plain load", "plain store", "store's scope", "poll's scope", "half"])  # fmt: skip
def test_other_accesses_to_what_blocks_exchange_are_found(parts, said):
    with pytest.raises(DeviceError, match=said):
        received(0, **FENCE | parts)
