"""What speaks against a time: that it scatters, that the machine was busy, that the GPU waited for the host.

One rule for what `numbarnn bench` prints, for what it records, and for the tables in README, which are made of records.
"""

import os
import time
from pathlib import Path

import numpy as np

BUSY = 0.3  # cores per core that others may keep busy
NOISY = 0.1  # half of a contender's rounds may lie that far apart, relative to their median
NOISY_TAIL = 0.5  # the same for the 99th percentiles of single calls, which scatter more
LEAST_ROUNDS = 3  # below, nobody knows how much they scatter


class Load:
    """What else the machine does, from the moment this is made; None where the system does not say."""

    def __init__(self):
        self.average = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        self._begin = time.monotonic(), busy_seconds(), own_seconds()

    def as_record(self):
        """Processes that wanted a core during the minute before; cores that others kept busy since, on average."""
        (begin, busy, own), elsewhere = self._begin, None
        if busy is not None:
            elsewhere = (busy_seconds() - busy - (own_seconds() - own)) / max(time.monotonic() - begin, 1e-3)
            elsewhere = max(0.0, elsewhere)
        return {"load_average_before": self.average, "cores_busy_elsewhere": elsewhere}


def busy_seconds():
    """Seconds that all cores together have worked since the system started; None where it is not Linux."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    user, nice, system, _, _, irq, softirq, *_ = map(int, stat.read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def own_seconds():
    """Seconds that this process and those that it has waited for have worked."""
    return sum(os.times()[:4])


def machine_doubt(load, cores):
    """What is to be said of a machine that was busy with something else, or None; load: as `Load.as_record`.

    What was seen during the measurement counts more than what was before it.
    """
    elsewhere, average = load.get("cores_busy_elsewhere"), load.get("load_average_before")
    if elsewhere is not None:
        return f"others kept {elsewhere:.1f} of {cores} cores busy" if elsewhere > BUSY * cores else None
    busy = average is not None and average > BUSY * cores
    return f"load average {average:.1f} on {cores} cores before the start" if busy else None


def spread(times):
    """How far the middle half of some times lies apart, relative to their median."""
    low, middle, high = np.percentile(times, (25, 50, 75))
    return float((high - low) / middle)


def doubts(row, names, machine=None):
    """What speaks against the times of some contenders of a row, as a list of words.

    Its times are the GPU's own where it has them, else those by the host's clock. What `machine_doubt` says counts by
    the host's clock, and by the GPU's where nobody has looked whether the GPU waited for the host (before 2026-11-22).
    """
    by_gpu = row.get("device_seconds") or {}
    times, behind = by_gpu or row["seconds"], row.get("host_behind")
    found = []
    for name in (name for name in names if name in times):
        rounds = len(times[name])
        if rounds < LEAST_ROUNDS:
            found.append(f"{name} had {rounds} rounds only")
        elif (apart := spread(times[name])) > NOISY:
            found.append(f"{name} scatters by {apart:.0%}")
        tails = (row.get("p99_seconds") or {}).get(name, ())
        if len(tails) >= LEAST_ROUNDS and (apart := spread(tails)) > NOISY_TAIL:
            found.append(f"{name}'s 99th percentile scatters by {apart:.0%}")
        if by_gpu and behind and behind.get(name):
            found.append(f"the GPU waited for the host in {behind[name]} of {rounds} rounds of {name}")
    if machine and (not by_gpu or behind is None):
        found.append(machine)
    return found
