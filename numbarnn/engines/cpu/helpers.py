"""Compiled functions on the calling thread and on others, which wait for them in compiled code."""

import threading

import numpy as np

from numbarnn.compile.plain import plain
from numbarnn.engines.cpu.atomics import (
    FOR_EVER,
    SLOTS,
    announce,
    exchange_if,
    load_in_order,
    store_in_order,
    wait_until,
)
from numbarnn.engines.cpu.records import JOB_BYTES, STEP_BYTES, from_python, job_at, new_job, run_job, step_at
from numbarnn.engines.cpu.vectors import numbers_at

# A helper waits for turns at the address of its slot. Places of a slot: turn and sleepers; then in a line of the cache
# of its own the turns that are done, and sleepers; then what is to do, and the turn once more, as a ticket: the helper
# takes it to have part in the turn, or the caller, who then does not wait for it.
_DONE, _FUNCTION, _ITEM, _JOB, _TICKET, _SLOT = 64, 128, 136, 144, 152, 192


@from_python
def help_forever(slot):
    """What a helping thread does; a turn without a function ends it."""
    words, turn = numbers_at(np.int64(0), slot), 0
    while True:
        wait_until(slot, turn + 1, FOR_EVER)
        turn = load_in_order(slot)
        if exchange_if(slot + _TICKET, turn, 0):
            if words[_FUNCTION // 8] == 0:
                break
            run_job(words[_ITEM // 8], words[_FUNCTION // 8], words[_JOB // 8])
            announce(slot + _DONE, turn)


@from_python
def run_alone(item, function, what):
    """Do something on this thread."""
    address = new_job()
    job = job_at(address)
    job.threads, job.what = 1, what
    run_job(item, function, address)


@from_python
def run_all_alone(item, steps, count):
    """Do several things on this thread, one after another.

    Args:
        item: bytes of a number of the dtype. steps: address of `records.Step`s.
    """
    address = new_job()
    job = job_at(address)
    job.threads = 1
    for number in range(count):
        step = step_at(steps + number * STEP_BYTES)
        job.what = step.what
        run_job(item, step.function, address)


@from_python
def run_together(item, function, what, threads, slots, jobs, counters, waits):
    """Do something on this thread and the helpers of the first slots.

    Args:
        item: bytes of a number of the dtype. function, what: addresses, see `records.Job`.
        slots, jobs, counters: addresses of memory for as many threads.
        waits: for all helpers; else only for those that have begun when this thread is done, as nothing is left to do.
    """
    _together(item, function, what, threads, slots, jobs, counters, waits)


@from_python
def run_all(item, steps, count, threads, slots, jobs, counters):
    """Do several things one after another, each on as many threads as its `records.Step` says, but no more than
    `threads`; none waits for helpers that have not begun. Args: as above."""
    address = new_job()
    for number in range(count):
        step, job = step_at(steps + number * STEP_BYTES), job_at(address)
        own = min(step.threads, threads)
        if own > 1:
            _together(item, step.function, step.what, own, slots, jobs, counters, 0)
        else:
            job.threads, job.what = 1, step.what
            run_job(item, step.function, address)


@plain
def _together(item, function, what, threads, slots, jobs, counters, waits):
    """What `run_together` does."""
    words = numbers_at(np.int64(0), counters)
    for k in range(threads * SLOTS):
        words[k] = 0
    for thread in range(threads - 1, -1, -1):
        address = jobs + thread * JOB_BYTES
        job = job_at(address)
        job.thread, job.threads, job.counters, job.what, job.left = thread, threads, counters, what, 0
        if thread > 0:
            slot = slots + (thread - 1) * _SLOT
            words = numbers_at(np.int64(0), slot)
            words[_FUNCTION // 8], words[_ITEM // 8], words[_JOB // 8] = function, item, address
            store_in_order(slot + _TICKET, words[0] + 1)
            announce(slot, words[0] + 1)
        else:
            run_job(item, function, address)
    for thread in range(1, threads):
        slot = slots + (thread - 1) * _SLOT
        turn = load_in_order(slot)
        if waits or not exchange_if(slot + _TICKET, turn, 0):
            wait_until(slot + _DONE, turn, FOR_EVER)


class Helpers:
    """Threads that wait in compiled code: without Python's lock, which they would hand to each other."""

    def __init__(self, count):
        self._memory = np.zeros((count + 1) * (_SLOT // 8 + JOB_BYTES // 8 + SLOTS), np.int64)
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
        """Let the threads end, which have nothing to do."""
        for number in range(self.count):
            words = self._memory[number * _SLOT // 8 :]
            words[_FUNCTION // 8] = 0
            tell(self.slots + number * _SLOT)


@from_python
def tell(slot):
    """A turn of a slot whose words are written."""
    turn = load_in_order(slot) + 1
    store_in_order(slot + _TICKET, turn)
    announce(slot, turn)
