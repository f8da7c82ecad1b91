"""Asking: a part's questions go to child processes, which are killed when they take too long.

A process that hangs or crashes costs one question and its limit; another one goes on with the rest. The part's file is
written after each answer: answers that came stay, whatever happens to this process.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from contextlib import suppress

from numbarnn.bench import console, info
from numbarnn.bench.prove import results

DEATH_S = 5  # a killed process has ended by then, unless the driver holds it: it is left behind
LETTERS_KEPT = 20_000  # of what a process that died wrote to its error stream
PIECE = 1 << 16
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class TookTooLong(Exception):
    """No answer came in time."""


class Died(Exception):
    """The process ended without an answer; the message tells how, and what it said last."""


class Child:
    """A process that answers questions of a part (`numbarnn.bench.prove.child`); cores: for its libraries' threads."""

    def __init__(self, part, asked, cores):
        environment = console.environment(simulated=asked.device == "sim") | dict.fromkeys(THREADS, str(cores))
        self._said = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "numbarnn.bench.prove.child", part.name, json.dumps(asked)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, env=environment, start_new_session=True,
        )  # fmt: skip
        self._come = b""

    def ask(self, question, until):
        """The answer, a dict; else TookTooLong, Died. until: as time.monotonic()."""
        try:
            self._process.stdin.write(json.dumps({"question": question}).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Died(self._how_it_ended()) from None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._come:
                left = until - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise TookTooLong
                piece = os.read(self._process.stdout.fileno(), PIECE)
                if not piece:
                    raise Died(self._how_it_ended())
                self._come += piece
        line, _, self._come = self._come.partition(b"\n")
        return json.loads(line)

    def _how_it_ended(self):
        try:
            code = self._process.wait(DEATH_S)
        except subprocess.TimeoutExpired:
            return f"the process closed its output and lives on; it said:\n{self.said()}"
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"the process ended with {how}; it said:\n{self.said()}"

    def said(self):
        """The end of what it wrote to its error stream."""
        size = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, size - LETTERS_KEPT))
        return self._said.read().decode(errors="replace")

    def kill(self):
        """Kills it, and whatever it has started."""
        with suppress(ProcessLookupError):  # it has ended by itself, with all that it had started
            os.killpg(self._process.pid, signal.SIGKILL)

    def end(self):
        """Kills it, and frees what belongs to it."""
        self.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(DEATH_S)
        for stream in (self._process.stdin, self._process.stdout, self._said):
            with suppress(BrokenPipeError):  # what it was asked, and did not read any more
                stream.close()


class Conductor:
    """Asks the questions of parts.

    Args:
        asked: a `parts.Asked`. until: when to end, as time.monotonic(). scale: of the limits of parts
            and questions.
        written: called after each answer was written.
    """

    def __init__(self, asked, until, scale, written):
        self.asked, self.until, self.scale, self.written = asked, until, scale, written
        self._lock = threading.Lock()
        self._cores = info.core_count()
        self._given_up, self._children = False, set()
        self._ready = {}  # part's name -> a process that has been started for it

    def end(self):
        """Ends what has been started for parts that were not asked."""
        for child in self._ready.values():
            child.end()

    def left(self):
        return max(0.0, self.until - time.monotonic())

    def run(self, part, kept, seconds, following=None):
        """Asks a part's questions that have no answer in `kept`, its `Results`, for at most so many seconds.

        Meanwhile a process of the `following` part, if there is one, loads what it needs.
        """
        begin = time.monotonic()
        until = min(self.until, begin + seconds)
        try:
            todo = part.questions(self.asked)
        except Exception as error:  # nothing of it can be asked
            todo = []
            kept.answers["-"] = {"question": "-", "outcome": results.FAILED, "message": repr(error), "seconds": 0.0}
        answered = {name for name, answer in kept.answers.items() if answer["outcome"] != results.CUT}
        todo = deque(name for name in todo if name not in answered)
        count = min(part.together, self._cores, len(todo))
        given = part, todo, kept, until, self._cores // max(1, count)
        threads = [threading.Thread(target=self._ask_all, args=given) for _ in range(count)]
        for thread in threads:
            thread.start()
        if following is not None and following.name not in self._ready:
            self._ready[following.name] = Child(
                following, self.asked, self._cores // min(following.together, self._cores)
            )
        try:
            for thread in threads:
                thread.join()
        except BaseException:  # Ctrl-C; the questions that are asked now have no answer, and are asked again next time
            self._given_up = True
            for child in list(self._children):
                child.kill()
            raise
        left_over = todo or any(answer["outcome"] == results.CUT for answer in kept.answers.values())
        kept.head["outcome"] = results.CUT if left_over else results.DONE
        kept.head["left"] = len(todo)
        kept.head["seconds"] += time.monotonic() - begin
        self._write(kept)

    def _ask_all(self, part, todo, kept, until, cores):
        """What one thread does: asks a process of its own, and another one where that did not survive."""
        child = None
        try:
            while time.monotonic() < until and not self._given_up:
                try:
                    question = todo.popleft()
                except IndexError:
                    return
                if child is None:
                    child = self._ready.pop(part.name, None) or Child(part, self.asked, cores)
                    self._children.add(child)
                    if self._given_up:  # meanwhile
                        return
                answer, alive = self._ask(child, question, until, part.question_s * self.scale)
                if self._given_up:
                    return
                if not alive:
                    self._end(child)
                    child = None
                with self._lock:
                    kept.answers[question] = answer
                    self._write(kept)
        finally:
            if child is not None:
                self._end(child)

    def _end(self, child):
        self._children.discard(child)
        child.end()

    @staticmethod
    def _ask(child, question, until, question_s):
        """(the answer, whether the process can go on)."""
        begin = time.monotonic()
        try:
            answer = child.ask(question, min(until, begin + question_s))
        except TookTooLong:
            spent, own = time.monotonic() - begin, begin + question_s <= until
            outcome = results.SLOW if own else results.CUT
            answer = {"outcome": outcome, "message": f"no answer within {spent:.0f} s; it said:\n{child.said()}"}
        except Died as reason:
            answer = {"outcome": results.CRASHED, "message": str(reason)}
        gone = answer["outcome"] in (results.SLOW, results.CUT, results.CRASHED)
        alive = not (answer.pop("broken", False) or gone)
        return {"question": question} | answer | {"seconds": time.monotonic() - begin}, alive

    def _write(self, kept):
        kept.write()
        self.written()
