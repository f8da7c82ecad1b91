"""`numbarnn check` in the CUDA simulator: child processes, as Numba reads its switch when it starts."""

import json
import subprocess
import sys
import tempfile
import threading
from collections import deque
from contextlib import ExitStack, contextmanager
from pathlib import Path

from numbarnn.bench.check.accuracy import Comparison, engine_failure
from numbarnn.bench.console import environment

TIMEOUT_S = 1200  # about ten times what the full check takes on two slow cores
LINES_KEPT = 30  # of what the child wrote to its error stream, for the message when it fails


@contextmanager
def simulator_checks(shares, schedules, quick, progress):
    """`simulator_check` for each share of the cells."""
    with ExitStack() as processes:
        results = [
            processes.enter_context(simulator_check(cells, schedules, quick, progress, f"sim, process {number}"))
            for number, cells in enumerate(shares, 1)
        ]
        yield lambda: [comparison for result in results for comparison in result()]


@contextmanager
def simulator_check(cells, schedules, quick, progress, task="sim"):
    """One such process, whose progress has the name `task`. Gives a function that waits for it and returns its
    comparisons: one failed comparison where it did not start, died or took too long."""
    said = deque(maxlen=LINES_KEPT)
    command = [sys.executable, "-m", "numbarnn", "check", "--device", "sim", "--progress", "lines"]
    command += ["--cell", ",".join(cells), "--schedule", ",".join(schedules), *(["--quick"] if quick else [])]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}

    def read():
        for line in process.stderr:
            words = line.split()
            if words[:1] == ["progress"] and len(words) == 3:
                progress.update(task, int(words[1]), int(words[2]))
            elif words:
                said.append(line.rstrip())

    def failure(message):
        return engine_failure("sim", message + ("; it said: " + " | ".join(said) if said else ""))

    def result():
        try:
            code = process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return [failure(f"the simulator's process took more than {TIMEOUT_S} s and was stopped")]
        reader.join()
        if code not in (0, 1) or not rows.exists():
            return [failure(f"the simulator's process ended with exit code {code} and no results")]
        comparisons = [Comparison.from_row(row) for row in json.loads(rows.read_text())]
        if code == 1 and all(comparison.ok for comparison in comparisons):
            comparisons.append(failure("the simulator's process failed, although its comparisons passed"))
        return comparisons

    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.json"
        command += ["--json", str(rows)]
        process = subprocess.Popen(command, **streams, text=True, errors="replace", env=environment(simulated=True))
        progress.start(task, None)
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield result
        finally:
            process.kill()
            process.wait()
            reader.join()
