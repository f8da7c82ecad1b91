"""How contenders are timed: in turns, by the host's clock and, on a GPU, by the GPU's as well.

Contenders take turns within each of several rounds, in alternating order. If they run on CPU threads, there is a gap
before each turn in which the others' threads go to sleep. Two times are taken:

    call     the host's clock from an idle device to an idle device: what a caller waits for. On the CPU every sample
             is a call (or ten short ones), and a turn is their median. On a GPU the calls of a turn are made back to
             back, waiting once at the end, as a training loop does.
    device   a GPU's clock (CUDA events) around calls made back to back while the GPU is kept busy with something else,
             so that launching costs nothing: what the GPU needs. `behind` counts the rounds in which the GPU began
             before the host had made its calls, and may have waited for it.

Steps of a stream are timed one by one: whoever takes a step at a time waits for each, and for the slowest (`tail`).
"""

import time
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from numbarnn.bench.peers.contender import torch

GAP_S = 0.06  # after this, the threads of the other libraries have stopped spinning: onnxruntime's take 50 ms
WARM_S = 0.004  # calls before a turn's timed ones, so that threads, caches and clocks are awake again
TURN_S = 0.08  # timed calls per turn take about this long, and are at least one
GPU_TURN_S = 0.03  # shorter on a GPU, whose times scatter less
CALLS_PER_TURN = (1, 2000)
SHORT_CALL_S, SHORT_CALLS_AT_ONCE = 1e-4, 10  # calls below this are timed ten at a time, for the clock's sake
TAIL = 99  # the percentile beside the median of single steps
HEAD_STARTS_S = 0.02, 0.08  # for how long, at most, the GPU is kept busy before the calls timed by its own clock
SLACK = 1.5  # the GPU is kept busy for so many times what the host needs for its calls
GPU_CLOCK_HZ = 2e9  # no GPU's clock is much faster


class Machine(NamedTuple):
    """Where times are taken, and how."""

    device: str  # "cpu" or "cuda"
    threads: int  # on the CPU, of every contender
    rounds: int  # how often each has a turn
    memory: bool = True  # measure memory of calls, too, which on a GPU takes longer than the turns
    gpu_clock: bool = False  # take times by the clock of a GPU, too, by the events of PyTorch


@dataclass
class Turns:
    """Seconds per call of one contender, a number per round: `call` and, on a GPU, `device`; rounds `behind`.
    Single steps also have their TAIL."""

    call: list = field(default_factory=list)
    device: list = field(default_factory=list)
    tail: list = field(default_factory=list)
    behind: int = 0


def take_turns(contenders, rounds, gpu=False, steps=0):
    """Return name of a contender (they differ) -> its `Turns`.
    gpu: they run on the default stream of PyTorch and CuPy, and its clock counts. steps: so many single ones of each,
    or more, by the host's clock."""
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
    """Return how many samples a turn takes, and how many calls each sample times at once."""
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
    """Return the seconds per call of each sample, after a few calls that are not timed."""
    begin = time.perf_counter()
    while time.perf_counter() - begin < WARM_S:
        timed(contender, 1)
    return [timed(contender, at_once) / at_once for _ in range(samples)]


def timed(contender, calls):
    """Return seconds for some calls, from an idle device to an idle device."""
    contender.synchronize()
    begin = time.perf_counter()
    for _ in range(calls):
        contender.call()
    contender.synchronize()
    return time.perf_counter() - begin


def device_time(contender, calls, call_s):
    """Return (seconds per call by the GPU's clock, whether the host was ahead of the GPU until it had made its calls).

    It times as many calls as the host makes during its head start; a host that was not ahead gets a longer one, once.
    """
    for head_start in HEAD_STARTS_S:
        at_once = int(np.clip(head_start / (SLACK * call_s), 1, calls))
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        contender.synchronize()
        busy_s = min(head_start, SLACK * at_once * call_s)
        torch.cuda._sleep(int(busy_s * GPU_CLOCK_HZ))  # the only kernel that just takes time
        begin.record()
        for _ in range(at_once):
            contender.call()
        ahead = not begin.query()  # the GPU is still busy with work before the first call
        end.record()
        end.synchronize()
        if ahead:
            break
    return begin.elapsed_time(end) * 1e-3 / at_once, ahead
