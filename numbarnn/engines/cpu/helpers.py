"""Run compiled functions on the calling thread and on helper threads, which wait for work in compiled code."""

import threading

import numpy as np

from numbarnn.compile.plain import plain
from numbarnn.engines.cpu.atomics import WORDS_APART, announce, load_in_order, wait_until
from numbarnn.engines.cpu.records import (
    FUSED_STEP_BYTES,
    JOB_BYTES,
    from_python,
    fused_step_at,
    job_at,
    new_job,
    run_job,
)
from numbarnn.engines.cpu.vectors import numbers_at

# Byte offsets in a helper's slot: turn and sleepers at 0; completed turns and sleepers in a separate cache line;
# then the work to do.
_DONE, _FUNCTION, _ITEM, _JOB, _SLOT = 64, 128, 136, 144, 192


@from_python
def help_forever(slot):
    """Do the work of each turn of a slot until a turn has no function."""
    words, turn = numbers_at(np.int64(0), slot), 0
    while True:
        turn += 1
        wait_until(slot, turn)
        if words[_FUNCTION // 8] == 0:
            break
        run_job(words[_ITEM // 8], words[_FUNCTION // 8], words[_JOB // 8])
        announce(slot + _DONE, turn)


@from_python
def run_alone(item, steps, count):
    """Run steps on this thread, one after another.

    Args:
        item: bytes of a number of the dtype. steps: address of `count` `records.FusedStep`s.
    """
    for number in range(count):
        _run_one(item, steps + number * FUSED_STEP_BYTES)


@from_python
def run_together(item, steps, count, threads, slots, jobs, counters):
    """Run steps one after another, each on as many threads as its `records.FusedStep` says.

    Args:
        item: bytes of a number of the dtype. steps: address of `count` `records.FusedStep`s.
        threads: the most that a step uses. slots, jobs, counters: addresses of memory for that many threads.
    """
    for number in range(count):
        step = fused_step_at(steps + number * FUSED_STEP_BYTES)
        if min(step.threads, threads) > 1:
            _together(item, step.function, step.record, min(step.threads, threads), slots, jobs, counters)
        else:
            _run_one(item, steps + number * FUSED_STEP_BYTES)


@plain
def _run_one(item, step):
    step, address = fused_step_at(step), new_job()
    job = job_at(address)
    job.threads, job.record = 1, step.record
    run_job(item, step.function, address)


@plain
def _together(item, function, record, threads, slots, jobs, counters):
    """Run one function on this thread and the first helpers, and wait for all of them."""
    words = numbers_at(np.int64(0), counters)
    for k in range(threads * WORDS_APART):
        words[k] = 0
    for thread in range(threads - 1, -1, -1):
        address = jobs + thread * JOB_BYTES
        job = job_at(address)
        job.thread, job.threads, job.counters, job.record = thread, threads, counters, record
        if thread > 0:
            slot = slots + (thread - 1) * _SLOT
            words = numbers_at(np.int64(0), slot)
            words[_FUNCTION // 8], words[_ITEM // 8], words[_JOB // 8] = function, item, address
            announce(slot, words[0] + 1)
        else:
            run_job(item, function, address)
    for thread in range(1, threads):
        slot = slots + (thread - 1) * _SLOT
        wait_until(slot + _DONE, load_in_order(slot))


class Helpers:
    """Threads that wait for work in compiled code, where they need not take Python's lock from each other."""

    def __init__(self, count):
        self._memory = np.zeros((count + 1) * (_SLOT // 8 + JOB_BYTES // 8 + WORDS_APART), np.int64)
        self.slots = self._memory.ctypes.data
        self.jobs = self.slots + (count + 1) * _SLOT
        self.counters = self.jobs + (count + 1) * JOB_BYTES
        self.count = count
        for number in range(count):
            slot = self.slots + number * _SLOT
            thread = threading.Thread(target=self._help, args=(slot,), name=f"numbarnn-{number + 1}", daemon=True)
            thread.start()

    def _help(self, slot):
        help_forever(slot)  # `self` keeps the memory

    def end(self):
        """End the threads, which must be idle."""
        for number in range(self.count):
            words = self._memory[number * _SLOT // 8 :]
            words[_FUNCTION // 8] = 0
            tell(self.slots + number * _SLOT)


@from_python
def tell(slot):
    """Begin a turn of a slot whose work has been written."""
    announce(slot, load_in_order(slot) + 1)
