"""The kernels of `numbarnn prove` compiled without a GPU, for one of compute capability 9.0 with 132 SMs.

    export PYTHONPATH=.:tests/support:tests/fakes NUMBARNN_TOOLCHAIN=carried NUMBARNN_CACHE_DIR=$PWD/.kernels
    python tests/support/compile_for_prove.py --minutes 30

A machine with a GPU that is lent for minutes finds them where it gets the folder and both words of the environment, and
runs the same code by the same Python version and numba-cuda. The calls of each question are made on a GPU that does
nothing (`fakes/idle_gpu.py`); a question is a process, which compiles what is not in the folder yet.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import time
from contextlib import suppress

import emulator
import idle_gpu
from numbarnn.bench.cases.cases import Case, make_instance
from numbarnn.bench.check import command as check
from numbarnn.bench.check.expected import Expectation, Expected
from numbarnn.bench.peers import peers
from numbarnn.bench.prove import parts, plain, timed
from numbarnn.bench.prove.tools import TESTS
from numbarnn.common import code_cache, notice

PARTS = "plain", "times", "silent", "options", "tests", "phases", "precision", "stream", "schedules"


def main():
    """Compiles, part by part, until the minutes are over."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", default=",".join(PARTS), help="with commas between; default %(default)s")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    args = parser.parse_args()
    until = time.monotonic() + 60 * args.minutes
    idle_gpu.install()
    asked = parts.Asked("cuda", False, os.environ.get("TMPDIR", "/tmp"))
    chosen = [parts.BY_NAME[name] for name in args.part.split(",")]
    todo = [(part.name, question, asked) for part in chosen for question in part.questions(asked)]
    with multiprocessing.get_context("fork").Pool(args.processes, maxtasksperchild=1) as pool:
        found = pool.imap_unordered(compile_question, todo)
        for number in range(1, len(todo) + 1):
            try:
                about, seconds, said = found.next(max(0.0, until - time.monotonic()))
            except multiprocessing.TimeoutError:
                print("the minutes are over: again, it goes on from here")
                break
            print(f"{number}/{len(todo)} {about}: {seconds:.0f} s of compiling {said}", flush=True)
        pool.terminate()
    kept = list(code_cache.directory().glob("*.cubin"))
    print(
        f"{len(kept)} kernels, {sum(file.stat().st_size for file in kept) / 2**20:.0f} MiB in {code_cache.directory()}"
    )


def compile_question(todo):
    """(part and question, seconds that compiling took, what went wrong) of one question's calls."""
    name, question, asked = todo
    try:
        CALLS[name](question, asked)
        said = ""
    except Exception as error:
        said = f"({type(error).__name__}: {str(error)[:200]})"
    return f"{name} {question}", notice.seconds(), said


def _checked(of):
    """Calls of `plain`, without what results should be."""

    def call(question, asked):
        Expected._expectation = lambda *_: Expectation({})
        case, schedules = plain.questions(asked, of)[question]
        found = check.check_case(case, "cuda", schedules, with_torch=False)
        failed = [one.message for one in found if one.quantity == "exception"]
        if failed:
            raise RuntimeError(failed[0])

    return call


def _timed(of):
    """Calls of `timed`."""

    def call(question, asked):
        cell, shape, dtype, tf32, semantics, schedules = timed.questions(asked, of)[question]
        sizes, options = (shape.T, shape.B, shape.I, (shape.H,) * shape.L), {"input_mode": semantics.input_mode}
        case = Case(cell, *sizes, gradients="y", dtype=dtype, allow_tf32=tf32, **options, **shape.options)
        instance = make_instance(case)
        for what in semantics.passes:
            for schedule in schedules:
                try:
                    peers.numbarnn_pass(instance, what, "cuda", schedule).call()
                except RuntimeError as refusal:
                    print(refusal, file=sys.stderr)

    return call


def _tests(question, asked):
    """The tests of a file, which compile and fail."""
    environment = os.environ | {emulator.VARIABLE: "idle"}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "--tb=no", question]
    subprocess.run(command, env=environment, cwd=TESTS.parent, stdout=subprocess.DEVNULL, timeout=1200)


def _answered(name):
    """The answer itself, which is wrong here: kernels that do not run stamp nothing, either."""

    def call(question, asked):
        with suppress(ValueError):
            parts.BY_NAME[name].answer(question, asked)

    return call


CALLS = {
    "plain": _checked("recorded"), "options": _checked("options"), "silent": _answered("silent"),
    "phases": _answered("phases"), "times": _timed("recorded"), "precision": _timed("precision"),
    "stream": _timed("stream"), "schedules": _timed("schedules"), "deepbench": _timed("deepbench"), "tests": _tests,
}  # fmt: skip

if __name__ == "__main__":
    main()
