"""Put questions to worker processes. One that takes too long is killed, and another goes on."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import NamedTuple

from numbarnn.bench import console

LOOK_S = 0.2  # between two looks at the answers of a worker
KEPT = 6000  # characters of the output of a process that died
FAILED = 3  # exit code of a worker whose last answer is an exception
AGAIN = ("cut off", "out of time", "cannot", "off")  # outcomes of which a later run asks again


class Run(NamedTuple):
    """What all questions share: device "cuda" or "sim", whether problems are tiny, and the folder of results."""

    device: str
    small: bool
    out: str

    def answers(self, part):
        """Question -> its last answer."""
        path, found = Path(self.out, f"{part}.jsonl"), {}
        for line in path.read_text().splitlines() if path.exists() else ():
            with suppress(ValueError):  # an empty line, or one whose writer was killed
                found |= {(answer := json.loads(line))["question"]: answer}
        return found

    def counts(self, part):
        outcomes = Counter(one["outcome"] for one in self.answers(part).values())
        return ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()) or "no answer"

    def keep(self, part, question, outcome, **figures):
        """Append an answer to a part's file by one write, as several processes do."""
        answer = console.json_types({"question": question, "outcome": outcome, "time": time.time(), **figures})
        with Path(self.out, f"{part}.jsonl").open("ab", buffering=0) as file:
            file.write(f"\n{json.dumps(answer)}\n".encode())


def work(part, names, run):
    """Answer questions in a worker: ok, wrong, cannot (something is missing here), or failed."""
    questions = import_module(part.module).questions(run, part.name)
    for question in names:
        begin = time.monotonic()
        try:
            found = questions[question]()
            outcome = "ok" if found.pop("ok") else "wrong"
        except console.CannotRun as reason:
            outcome, found = "cannot", {"message": str(reason)}
        except Exception:
            outcome, found = "failed", {"message": traceback.format_exc()}
        run.keep(part.name, question, outcome, **found, seconds=time.monotonic() - begin)
        if outcome == "failed":  # after some errors a process cannot use the GPU any more
            return FAILED
    return 0


def ask(part, run, until, again, tick):
    """Ask what has no answer or an outcome that is in `again`, until a time; call tick() meanwhile."""
    answers, smoke = run.answers(part.name), run.answers("smoke") if part.name != "smoke" else {}
    failed = {name.split()[-1] for name, one in smoke.items() if one["outcome"] in ("wrong", "failed", "crashed")}
    todo = []
    for name in import_module(part.module).questions(run, part.name):
        if failed & set(name.split()):
            run.keep(part.name, name, "off", message="smoke has failed for it")
        elif name not in answers or answers[name]["outcome"] in again:
            todo.append(name)
    stop, count = Event(), 0 if time.monotonic() > until else min(part.processes, os.cpu_count(), len(todo))
    with ThreadPoolExecutor(part.processes) as pool:
        overseers = [pool.submit(oversee, part, run, todo[number::count], stop) for number in range(count)]
        try:
            while time.monotonic() < until and not all(one.done() for one in overseers):
                time.sleep(LOOK_S)
                tick()
        finally:
            stop.set()


def oversee(part, run, todo, stop):
    """Let worker processes answer questions, one process after another."""
    begin, limit = time.time(), part.question_s * (5 if run.small else 1)  # small: not on a GPU

    def left():
        answers = run.answers(part.name)
        return [name for name in todo if name not in answers or answers[name]["time"] < begin]

    while todo and not stop.is_set():
        command = [sys.executable, str(Path(__file__).parent), "--out", run.out, "--device", run.device]
        command += [*["--small"] * run.small, "--worker", part.name, *todo]
        environment = console.environment() | {"OMP_NUM_THREADS": "2"}
        with tempfile.TemporaryFile() as said:
            streams = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(command, env=environment, start_new_session=True, **streams)
            since, code = time.monotonic(), None
            while todo and code is None and time.monotonic() - since < limit and not stop.wait(LOOK_S):
                code, before, todo = process.poll(), todo, left()
                since = since if todo == before else time.monotonic()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)  # longer only if the driver holds it: it is left behind
            before, todo = todo, left()
            if todo and todo == before and code != FAILED:
                outcome = "crashed" if code is not None else "cut off" if stop.is_set() else "out of time"
                said.seek(max(0, said.seek(0, os.SEEK_END) - KEPT))
                message = f"{said.read().decode(errors='replace')}\nexit code {code}"
                run.keep(part.name, todo.pop(0), outcome, message=message)
