"""`numbarnn bench --beside`: calls while other processes want the processors, too, on all threads and on one.

A thread that has no processor may hold up those that wait for it, until a call takes longer than on one thread alone.
So some processes do nothing but count, and calls on all threads take turns with the same on one. A turn's time is the
mean of its calls: a median would not show the few that stood still. Training loops of PyTorch's are timed likewise, and
with as many DataLoader workers in place of these processes.
"""

import argparse
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from itertools import product

import numpy as np

from numbarnn import engines
from numbarnn.bench import console
from numbarnn.bench.cases.cases import Case, make_instance
from numbarnn.bench.cases.passes import SHORT, WHOLE
from numbarnn.bench.peers import peers
from numbarnn.bench.peers.contender import torch
from numbarnn.bench.speed import timing, training_loop
from numbarnn.bench.speed.training_loop import LOOP, LOOPS, WITH_WORKERS

MOST = 64  # processes
TURN_S = 0.15  # longer than the time slices that processes get
BUSY = "print(flush=True)\nwhile True: pass"
WORDS = SHORT | {LOOP: "loop", WITH_WORKERS: "loop, workers"}
LIMIT = 1.5  # times the better of one and all threads: more is "late"


def counts(text):
    """An argparse type: numbers of processes, with commas between, 0 and more."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"expected whole numbers of processes with commas between, got {text!r}")
    found = [int(part) for part in parts]
    if max(found) > MOST:
        raise argparse.ArgumentTypeError(f"expected at most {MOST} processes, got {max(found)}")
    return list(dict.fromkeys(found))


def run(args, problems, where):
    """Takes the times, prints them; returns 0.

    Args:
        problems: (cell, `shapes.Shape`) of each. where: `timing.Machine`.
    """
    if where.device != "cpu":
        raise console.CannotRun("--beside is about threads of the CPU: add --device cpu")
    if where.threads < 2:
        raise console.CannotRun("--beside compares several threads with one, and there is but one: see --threads")
    rows, todo, title = [], list(product(args.beside, problems, args.dtype, (*WHOLE, *LOOPS))), "bench --beside"
    todo = [one for one in todo if one[-1] not in LOOPS or training_loop.runs(*one[1], one[2])]
    # loops last: from then on PyTorch's threads are the engine's
    todo.sort(key=lambda one: (one[-1] in LOOPS and 1 + LOOPS.index(one[-1]), one[0]))
    with console.Progress() as progress, ExitStack() as others:
        progress.start(title, len(todo))
        running = 0
        for count, (cell, shape), dtype, what in todo:
            busy = 0 if what == WITH_WORKERS else count
            if busy < running:
                others.close()
                running = 0
            others.enter_context(busy_processes(busy - running))
            running = busy
            if what in LOOPS:
                seconds = measure_loop(cell, shape, count if what == WITH_WORKERS else None, where)
            else:
                seconds = measure(cell, shape, dtype, what, where)
            about = {"cell": cell, "shape": shape.sizes, "form": shape.form, "dtype": dtype, "what": what}
            rows.append(about | {"beside": count, "threads": where.threads, "seconds": seconds})
            progress.update(title)
    print_times(rows, where)
    if args.json:
        console.write_json(args.json, rows)
    return 0


@contextmanager
def busy_processes(count):
    """So many processes that keep a processor busy each, if they get one."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for process in started:
            process.stdout.readline()  # it has begun
        yield
    finally:
        for process in started:
            process.kill()
            process.communicate()


def measure(cell, shape, dtype, what, where):
    """{"one": seconds per call on one thread in each round, "all": on all threads}."""
    sizes = shape.T, shape.B, shape.I, (shape.H,) * shape.L
    instance = make_instance(Case(cell, *sizes, gradients="y", dtype=dtype, **shape.options))
    contenders = {}
    return take_turns(lambda name: contenders.setdefault(name, peers.numbarnn_pass(instance, what)), where)


def measure_loop(cell, shape, workers, where):
    """The same of steps of a training loop, see `training_loop.steps`."""
    with training_loop.steps(cell, shape, workers) as contender:
        return take_turns(lambda name: contender, where)


def take_turns(contender_of, where):
    """What `measure` returns, of contender_of("one") and contender_of("all")."""
    engine = engines.get("cpu")
    threads, seconds = {"one": 1, "all": where.threads}, {"one": [], "all": []}

    def set_threads(count):
        engine.set_num_threads(count)
        torch.set_num_threads(count)

    try:
        for number in range(where.rounds):
            for name in threads if number % 2 else reversed(threads):
                set_threads(threads[name])
                contender = contender_of(name)
                time.sleep(timing.GAP_S)
                seconds[name].append(one_turn(contender))
    finally:
        set_threads(where.threads)
    return seconds


def one_turn(contender):
    """Mean seconds per call, after a few calls that are not timed."""
    begin, calls = time.perf_counter(), 0
    while time.perf_counter() - begin < timing.WARM_S:
        contender.call()
    begin = time.perf_counter()
    while calls == 0 or time.perf_counter() - begin < TURN_S:
        contender.call()
        calls += 1
    return (time.perf_counter() - begin) / calls


def ratio(row):
    """Median over rounds of the time on all threads / the better of that and the time on one."""
    return float(np.median([every / min(one, every) for one, every in zip(*row["seconds"].values(), strict=True)]))


def print_times(rows, where):
    """The table, and how many rows are late."""
    table = []
    for row in rows:
        one, every = (1e3 * np.median(row["seconds"][name]) for name in ("one", "all"))
        sizes = ",".join(map(str, row["shape"].values())) + "".join(f" {word}" for word in row["form"])
        about = [row["cell"], sizes, row["dtype"], WORDS[row["what"]], row["beside"]]
        result = "late" if ratio(row) > LIMIT else "ok"
        table.append([result, *about, f"{one:.3f}", f"{every:.3f}", f"{ratio(row):.2f}"])
    title = f"Milliseconds per call beside busy processes, on one and on {where.threads} CPU threads"
    columns = ["one thread", "all threads", "all / better"]
    console.print_table(title, ["result", "cell", "T,B,I,H,L", "dtype", "pass", "beside", *columns], table, columns)
    late = sum(ratio(row) > LIMIT for row in rows)
    console.say(f"numbarnn bench: {late} of {len(rows)} rows take more than {LIMIT} times the better of both")
