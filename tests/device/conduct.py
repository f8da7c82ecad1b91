"""Put the questions of a part to worker processes, which are killed when they take too long.

A worker appends each answer to the part's file as one line of JSON. A question that hangs or crashes costs one process
and its limit; another process goes on with the rest.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

LOOK_S = 0.2  # between two looks at what workers have answered
DEATH_S = 5  # a killed process has ended by then, unless the driver holds it: it is left behind
KEPT = 6000  # characters of what a process that died wrote
LATER = ("cut off", "out of time", "cannot", "off")  # outcomes that a later run asks about again
SLOW = 5  # times as long as on a GPU may small questions take


class Run(NamedTuple):
    """What all parts are asked with: device "cuda" or "sim", whether problems are tiny, and the folder of results."""

    device: str
    small: bool
    out: str


def path_of(run, name):
    return Path(run.out) / f"{name}.jsonl"


def read(run, name):
    """Question -> its last answer, of a part."""
    lines = path_of(run, name).read_text().splitlines() if path_of(run, name).exists() else []
    return {answer["question"]: answer for answer in map(json.loads, lines)}


def keep(run, name, answer):
    """Append an answer to a part's file, by one write, as several processes do."""
    with path_of(run, name).open("ab", buffering=0) as file:
        file.write(json.dumps(answer).encode() + b"\n")


def work(part, questions, run):
    """Answer questions one after another, in a worker: ok, wrong, cannot (something is missing here), or failed."""
    from numbarnn.bench import console
    from numbarnn.common import notice

    for question in questions:
        begin, compiling = time.monotonic(), notice.seconds()
        try:
            found = part.answer(question, run)
            answer = {"outcome": "ok" if found.pop("ok") else "wrong", **found}
        except console.CannotRun as reason:
            answer = {"outcome": "cannot", "message": str(reason)}
        except Exception:
            answer = {"outcome": "failed", "message": traceback.format_exc()}
        about = {"seconds": time.monotonic() - begin, "compiling_s": notice.seconds() - compiling}
        keep(run, part.name, console.plain({"question": question} | answer | about))
        if answer["outcome"] == "failed":  # after some errors a GPU works no more for a process
            return 1
    return 0


def ask(part, run, until, written):
    """Ask the questions of a part that have no answer yet, until a time; written() is called now and then."""
    answers, smoke = read(run, part.name), read(run, "smoke")
    failed = {name.split()[-1] for name, one in smoke.items() if one["outcome"] in ("wrong", "failed", "crashed")}
    todo = []
    for question in part.questions(run):
        if part.name != "smoke" and failed & set(question.split()):
            keep(run, part.name, {"question": question, "outcome": "off", "message": "smoke has failed for it"})
        elif question not in answers or answers[question]["outcome"] in LATER:
            todo.append(question)
    count = min(part.together, os.cpu_count(), len(todo))
    workers = [Worker(part, run, todo[number::count]) for number in range(count)]
    try:
        while any(worker.look() for worker in workers) and time.monotonic() < until:
            time.sleep(LOOK_S)
            written()
        for worker in workers:
            worker.stop("cut off")
    finally:
        for worker in workers:
            worker.end()


class Worker:
    """A process that answers a list of questions, and the next one where it did not survive."""

    def __init__(self, part, run, todo):
        self._part, self._run, self._todo, self._process = part, run, todo, None
        self._limit = part.question_s * (SLOW if run.small else 1)
        self._before = path_of(run, part.name).stat().st_size if path_of(run, part.name).exists() else 0

    def look(self):
        """Note what was answered, kill what takes too long, start a process where there is none; False: all done."""
        self._drop_answered()
        ended = self._process is not None and self._process.poll() is not None
        if ended and self._todo and self._process.returncode != 1:  # 1: it ended after an answer
            self.stop("crashed")
        elif self._todo and self._process is not None and time.monotonic() - self._since > self._limit:
            self.stop("out of time")
        if self._todo and (self._process is None or self._process.poll() is not None):
            self._start()
        return bool(self._todo)

    def stop(self, outcome):
        """End the process, and note this outcome of the question that it was asked."""
        self._drop_answered()
        if self._todo and self._process is not None:
            self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - KEPT))
            said = f"{self._said.read().decode(errors='replace')}\nexit code {self._process.poll()}"
            seconds = time.monotonic() - self._since
            answer = {"question": self._todo.pop(0), "outcome": outcome, "message": said, "seconds": seconds}
            keep(self._run, self._part.name, answer)
            self._since = time.monotonic()
        self.end()

    def end(self):
        """Kill the process with all that it has started."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(DEATH_S)
            self._process = None

    def _drop_answered(self):
        path = path_of(self._run, self._part.name)
        lines = path.read_bytes()[self._before :].splitlines() if path.exists() else []
        answered = {json.loads(line)["question"] for line in lines}
        left = [question for question in self._todo if question not in answered]
        if left != self._todo:
            self._todo, self._since = left, time.monotonic()

    def _start(self):
        run, self._said = self._run, tempfile.TemporaryFile()
        command = [sys.executable, str(Path(__file__).parent), "--out", run.out, "--device", run.device]
        command += [*["--small"] * run.small, "--worker", self._part.name, *self._todo]
        more = {"NUMBA_ENABLE_CUDASIM": "1"} if run.device == "sim" else {}
        streams = {"stdin": subprocess.DEVNULL, "stdout": self._said, "stderr": subprocess.STDOUT}
        environment = os.environ | {"OMP_NUM_THREADS": "2"} | more
        self._process = subprocess.Popen(command, env=environment, start_new_session=True, **streams)
        self._since = time.monotonic()
