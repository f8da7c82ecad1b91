"""`numbarnn check` in the CUDA simulator: a child process, as Numba reads its switch when it starts."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import deque
from pathlib import Path

from numbarnn.bench.check.accuracy import Comparison, engine_failure

TIMEOUT_S = 1200  # about ten times what the full check takes on two slow cores
LINES_KEPT = 30  # of what the child wrote to its error stream, for the message when it fails


class SimulatorCheck:
    """`numbarnn check --device sim` beside this process: `with SimulatorCheck(...)`, then `result()`."""

    def __init__(self, cells, schedules, quick, progress):
        self.progress = progress
        self.arguments = ["--cell", ",".join(cells), "--schedule", ",".join(schedules)] + (["--quick"] if quick else [])
        self.lines = deque(maxlen=LINES_KEPT)

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.json = Path(self.folder.name) / "rows.json"
        command = [sys.executable, "-m", "numbarnn", "check", "--device", "sim", "--progress", "lines"]
        self.process = subprocess.Popen(
            [*command, "--json", str(self.json), *self.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=child_environment(),
        )
        self.progress.start("sim (child process)", None)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        return self

    def __exit__(self, *exception):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.reader.join()
        self.folder.cleanup()

    def _read(self):
        for line in self.process.stderr:
            words = line.split()
            if words[:1] == ["progress"] and len(words) == 3:
                self.progress.update("sim (child process)", int(words[1]), int(words[2]))
            elif words:
                self.lines.append(line.rstrip())

    def result(self):
        """The child's comparisons; one failed comparison where it did not start, died or took too long."""
        try:
            code = self.process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return [self._failure(f"the simulator's process took more than {TIMEOUT_S} s and was stopped")]
        self.reader.join()
        if code not in (0, 1) or not self.json.exists():
            return [self._failure(f"the simulator's process ended with exit code {code} and no results")]
        comparisons = [Comparison.from_row(row) for row in json.loads(self.json.read_text())]
        if code == 1 and all(comparison.ok for comparison in comparisons):
            comparisons.append(self._failure("the simulator's process failed, although its comparisons passed"))
        return comparisons

    def _failure(self, message):
        said = "; it said: " + " | ".join(self.lines) if self.lines else ""
        return engine_failure("sim", message + said)


def child_environment():
    """This process's environment with the simulator switched on, and this numbarnn first on the path."""
    import numbarnn

    root = str(Path(numbarnn.__file__).resolve().parent.parent)
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "PYTHONPATH": path}
