"""Put questions to worker processes, which are killed when they take too long.

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

from numbarnn.bench import console
from numbarnn.common import notice

LOOK_S = 0.2  # between two looks at the answers of workers
DEATH_S = 5  # for a killed process to end; longer only if the driver holds it, and then it is left behind
KEPT = 6000  # characters of the output of a process that died
SLOW = 5  # simulator and emulated GPU: how many times as long a question may take
FAILED = 3  # exit code of a worker after an answer that was an exception
AGAIN = ("cut off", "out of time", "cannot", "off")  # outcomes of which a later run asks again


class Run(NamedTuple):
    """What all questions share: device "cuda" or "sim", whether problems are tiny, and the folder of results."""

    device: str
    small: bool
    out: str

    def path(self, part):
        return Path(self.out) / f"{part}.jsonl"

    def answers(self, part):
        """Question -> its last answer."""
        found = {}
        for line in self.path(part).read_text().splitlines() if self.path(part).exists() else ():
            with suppress(ValueError):  # an empty line, or one whose writer was killed
                found |= {(answer := json.loads(line))["question"]: answer}
        return found

    def keep(self, part, question, outcome, **figures):
        """Append an answer to a part's file by one write, as several processes do."""
        answer = console.plain({"question": question, "outcome": outcome, **figures})
        with self.path(part).open("ab", buffering=0) as file:
            file.write(f"\n{json.dumps(answer)}\n".encode())


def work(part, questions, run):
    """Answer questions in a worker: ok, wrong, cannot (something is missing here), or failed."""
    for question in questions:
        begin, compiling = time.monotonic(), notice.seconds()
        try:
            found = part.answer(question, run)
            outcome = "ok" if found.pop("ok") else "wrong"
        except console.CannotRun as reason:
            outcome, found = "cannot", {"message": str(reason)}
        except Exception:
            outcome, found = "failed", {"message": traceback.format_exc()}
        found |= {"seconds": time.monotonic() - begin, "compiling_s": notice.seconds() - compiling}
        run.keep(part.name, question, outcome, **found)
        if outcome == "failed":  # after some errors a process cannot use the GPU any more
            return FAILED
    return 0


def ask(part, run, until, again, tick):
    """Ask the questions without an answer, and those whose outcome is in `again`, until a time; call tick() meanwhile."""
    answers, smoke = run.answers(part.name), run.answers("smoke") if part.name != "smoke" else {}
    failed = {name.split()[-1] for name, one in smoke.items() if one["outcome"] in ("wrong", "failed", "crashed")}
    todo = [name for name in part.questions(run) if name not in answers or answers[name]["outcome"] in again]
    for name in [name for name in todo if failed & set(name.split())]:
        run.keep(part.name, name, "off", message="smoke has failed for it")
        todo.remove(name)
    count = min(part.processes, os.cpu_count(), len(todo))
    workers = [Worker(part, run, todo[number::count]) for number in range(count)]
    try:
        while time.monotonic() < until and any([worker.look() for worker in workers]):
            time.sleep(LOOK_S)
            tick()
    finally:
        for worker in workers:
            worker.stop("cut off")


class Worker:
    """A process that answers a list of questions, and its successors where it dies."""

    def __init__(self, part, run, todo):
        self._part, self._run, self._todo, self._process = part, run, todo, None
        self._limit = part.question_s * (SLOW if run.small else 1)
        self._before = run.answers(part.name)

    def look(self):
        """Kill a process that takes too long, start one where there is none; return whether questions are left."""
        code = None if self._process is None else self._process.poll()
        self._drop_answered()
        if self._todo and code == FAILED:
            self._process = None
        elif self._todo and code is not None:
            self.stop("crashed")
        elif self._process is not None and time.monotonic() - self._since > self._limit:
            self.stop("out of time")
        if self._todo and self._process is None:
            self._start()
        return bool(self._todo)

    def stop(self, outcome):
        """End the process with all that it has started; the question that it was busy with gets this outcome."""
        if self._process is None:
            return
        code, question = self._process.poll(), self._todo[:1]
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(DEATH_S)
        self._process = None
        self._drop_answered()
        if question and self._todo[:1] == question:
            self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - KEPT))
            said = f"{self._said.read().decode(errors='replace')}\nexit code {code}"
            self._run.keep(self._part.name, self._todo.pop(0), outcome, message=said)

    def _drop_answered(self):
        answers = self._run.answers(self._part.name)
        left = [name for name in self._todo if answers.get(name) == self._before.get(name)]
        if left != self._todo:
            self._todo, self._since = left, time.monotonic()

    def _start(self):
        run, self._said, self._since = self._run, tempfile.TemporaryFile(), time.monotonic()
        command = [sys.executable, str(Path(__file__).parent), "--out", run.out, "--device", run.device]
        command += [*["--small"] * run.small, "--worker", self._part.name, *self._todo]
        environment = console.environment(simulated=run.device == "sim") | {"OMP_NUM_THREADS": "2"}
        streams = {"stdin": subprocess.DEVNULL, "stdout": self._said, "stderr": subprocess.STDOUT}
        self._process = subprocess.Popen(command, env=environment, start_new_session=True, **streams)
