"""Time contenders in turns, by the host's clock and on a GPU also by the GPU's clock.

Contenders take turns within each of several rounds, in alternating order. On the CPU there is a gap before each turn in
which the other contenders' threads go to sleep. Two times are taken:

    call     by the host's clock, from an idle device to an idle device. On the CPU every sample is a call (or ten short
             calls), and a turn is their median. On a GPU the calls of a turn are made back to back, with one wait at
             the end, as in a training loop.
    device   by the GPU's clock (CUDA events), around calls made back to back while the GPU is still busy with other
             work, so that launching costs nothing. `behind` counts the rounds in which the GPU finished that work
             before the host had made its calls, and may have waited for the host.

Steps of a stream are timed one by one, with their 99th percentile (`tail`).
"""

import time
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from numbarnn.bench.peers.contender import torch

GAP_S = 0.06  # other libraries' threads stop spinning within this time (onnxruntime's after 50 ms)
WARM_S = 0.004  # untimed calls before a turn wake threads, caches and clocks
TURN_S = 0.08  # duration of a turn's timed calls
GPU_TURN_S = 0.03  # times of a GPU scatter less
CALLS_PER_TURN = (1, 2000)
SHORT_CALL_S, SHORT_CALLS_AT_ONCE = 1e-4, 10  # shorter calls are timed ten at a time, as the clock is coarse
TAIL = 99  # the percentile of single steps
HEAD_STARTS_S = 0.02, 0.08  # longest time for which the GPU is kept busy before calls timed by its clock; second try
SLACK = 1.5  # the GPU is kept busy this many times as long as the host needs for its calls
GPU_CLOCK_HZ = 2e9  # about the fastest GPU clock


class Machine(NamedTuple):
    """The device and how it is timed."""

    device: str  # "cpu" or "cuda"
    threads: int  # CPU threads of every contender
    rounds: int  # turns of every contender
    memory: bool = True  # measure the memory of calls
    gpu_clock: bool = False  # take times by the GPU's clock too


@dataclass
class Turns:
    """Seconds per call of one contender, a number per round, and the number of rounds `behind`."""

    call: list = field(default_factory=list)
    device: list = field(default_factory=list)
    tail: list = field(default_factory=list)
    behind: int = 0


def take_turns(contenders, rounds, gpu=False, steps=0):
    """Return name of each contender -> its `Turns`.

    gpu: time by the GPU's clock too. steps: number of single steps of each, at least; 0: whole calls."""
    plans = {one.name: (-(-steps // rounds), 1) if steps else calls_per_turn(one, gpu) for one in contenders}
    turns = {contender.name: Turns() for contender in contenders}
    for number in range(rounds):
        for contender in contenders if number % 2 == 0 else contenders[::-1]:
            if steps or not gpu:
                time.sleep(GAP_S)
            samples, at_once = plans[contender.name]
            turn, seconds = turns[contender.name], one_turn(contender, samples, at_once)
            turn.call.append(float(np.median(seconds)))
            if steps:
                turn.tail.append(float(np.percentile(seconds, TAIL)))
            elif gpu:
                seconds, ahead = device_time(contender, at_once, turn.call[-1])
                turn.device.append(seconds)
                turn.behind += not ahead
    return turns


def calls_per_turn(contender, gpu=False):
    """Return the number of samples of a turn, and of calls in each sample."""
    turn_s = GPU_TURN_S if gpu else TURN_S
    begin = time.perf_counter()
    timed(contender, 1)
    enough = min(1 + int(turn_s / 4 / max(time.perf_counter() - begin, 1e-7)), CALLS_PER_TURN[1])
    per_call = timed(contender, enough) / enough
    calls = int(np.clip(turn_s / per_call, *CALLS_PER_TURN))
    if gpu:
        return 1, calls
    at_once = SHORT_CALLS_AT_ONCE if per_call < SHORT_CALL_S else 1
    return max(1, calls // at_once), at_once


def one_turn(contender, samples, at_once):
    """Return the seconds per call of each sample, after untimed calls."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < WARM_S:
        timed(contender, 1)
    return [timed(contender, at_once) / at_once for _ in range(samples)]


def timed(contender, calls):
    """Return the seconds of some calls, from an idle device to an idle device."""
    contender.synchronize()
    begin = time.perf_counter()
    for _ in range(calls):
        contender.call()
    contender.synchronize()
    return time.perf_counter() - begin


def device_time(contender, calls, call_s):
    """Return the seconds per call by the GPU's clock, and whether the host made its calls before the GPU needed them.

    If not, it tries once more with a longer head start."""
    for head_start in HEAD_STARTS_S:
        at_once = int(np.clip(head_start / (SLACK * call_s), 1, calls))
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        contender.synchronize()
        busy_s = min(head_start, SLACK * at_once * call_s)
        torch.cuda._sleep(int(busy_s * GPU_CLOCK_HZ))
        begin.record()
        for _ in range(at_once):
            contender.call()
        ahead = not begin.query()  # the GPU is still busy with work before the first call
        end.record()
        end.synchronize()
        if ahead:
            break
    return begin.elapsed_time(end) * 1e-3 / at_once, ahead
