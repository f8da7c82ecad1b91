"""What a step of the persistent kernels is made of, by the clocks of the SMs (`numbarnn.bench.trace.stamps`).

Beside it stand the time of the whole launch by the GPU's clock, with and without stamps, so that what they cost is
known, and what the planner estimates.
"""

from pathlib import Path

import numpy as np

from numbarnn import engines
from numbarnn.bench import console
from numbarnn.bench.cases.cases import Case, make_instance, make_layer
from numbarnn.bench.cases.shapes import shapes
from numbarnn.bench.peers import peers
from numbarnn.bench.trace import record, stamps
from numbarnn.schedules.persistent.schedule import SCHEDULE

LARGE = [("float16", shape) for shape in shapes("25,16,512,512,1 150,16,768,768,1 50,64,1024,1024,1 100,64,512,512,1")]
LARGE += [("float32", shape) for shape in shapes("25,16,512,512,1 100,16,768,768,1 50,64,512,512,1")]
SMALL = [("float32", shape) for shape in shapes("5,2,4,8,1")]
CALLS = 5  # timed; the median counts
SHOWN = ("step", "wait", "multiply", "rest")


def questions(asked):
    """Name -> (dtype, shape, whether backward)."""
    return {
        f"lstm {shape} {dtype} {'backward' if backward else 'forward'}": (dtype, shape, backward)
        for dtype, shape in (SMALL if asked.small else LARGE) for backward in (False, True)
    }  # fmt: skip


def answer(name, asked):
    """Microseconds of a step's parts, and of the launch."""
    dtype, shape, backward = questions(asked)[name]
    case = Case("lstm", shape.T, shape.B, shape.I, (shape.H,) * shape.L, gradients="y", dtype=dtype)
    instance, engine = make_instance(case), engines.get(asked.device)
    usual = _timed(engine, *_made(instance, asked, backward))
    with stamps.stamped(engine, case.T) as made:
        layer, call = _made(instance, asked, backward)
        with_stamps = _timed(engine, layer, call)
        for one in made:
            one.array[...] = 0
        call()
        (found,) = (read for read in (one.read(engine) for one in made) if read.any())  # those of this call
    launch = _launch(layer, case, backward)
    parts = stamps.phases(found)
    whole = with_stamps is not None and parts["span_us"] is not None
    facts = (("clock", f"{parts['clock_ghz']} GHz"), ("launch", str(launch)))
    shown = record.as_json(stamps.trace(found, name, backward, facts))
    path = Path(asked.folder) / f"trace-{name.replace(' ', '-').replace(',', '_')}.json"
    console.write_json(path, shown)
    return {
        "ok": parts["step_us"] is not None, "call_us": usual, "call_with_stamps_us": with_stamps,
        "around_us": with_stamps - parts["span_us"] if whole else None,
        "estimate": vars(launch.estimate) | {"step": launch.estimate.step, "all": launch.microseconds},
        "plan": str(launch), "trace": path.name, **parts,
    }  # fmt: skip


def _made(instance, asked, backward):
    """(layer, a call of the pass alone, which may be made again and again)."""
    layer = make_layer(instance.case, asked.device, instance.parameters, "persistent")
    x, state, dy = peers.inputs(layer, instance)
    if not backward:
        return layer, lambda: layer(x, state)
    tape = layer.forward(x, state)[2]
    return layer, lambda: layer.backward(tape, dy, retain=True)


def _launch(layer, case, backward):
    """The pass's one `planner.Launch`."""
    (launch,) = SCHEDULE.launches(layer.stack.problem(case.T, case.B, backward), backward)
    return launch


def _timed(engine, layer, call):
    """Microseconds of a call by the GPU's clock; None where there is none. Compiles, and records the call's graph."""
    for _ in range(3):
        call()
    layer.check()
    if engine.name != "cuda":
        return None
    cupy, times = engine.array_module, []
    for _ in range(CALLS):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(cupy.cuda.get_elapsed_time(begin, end) * 1e3)
    return float(np.median(times))


def told(answers):
    """A line for each problem."""
    lines = []
    for one in (answer for answer in answers if "plan" in answer):
        told = ", ".join(f"{part} {_number(one[f'{part}_us'])}" for part in SHOWN)
        estimate = one["estimate"]
        lines.append(
            f"{one['question']}: {told} µs (estimated {estimate['step']:.2f}: exchange {estimate['exchange']:.2f}, "
            f"read {estimate['read']:.2f}, multiply {estimate['multiply']:.2f}, add {estimate['add']:.2f}); all "
            f"{_number(one['call_us'])}, with stamps {_number(one['call_with_stamps_us'])}, around the steps "
            f"{_number(one['around_us'])} µs; {_number(one['clock_ghz'])} GHz"
        )
    return lines


def _number(value):
    return "?" if value is None else f"{value:.2f}"
