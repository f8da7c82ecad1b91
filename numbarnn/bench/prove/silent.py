"""A kernel of which one block publishes nothing: does it end, in an error that says where, and soon?

Every wait is bounded (`numbarnn.kernels.persistent.exchange`); this is what the bound is for. Afterwards a layer with
the kernels as they are must be right on the same device.
"""

import time
from contextlib import nullcontext

import numpy as np
from numba import cuda

from numbarnn import engines
from numbarnn.bench.altered import altered
from numbarnn.bench.cases.cases import Case, make_instance, make_layer
from numbarnn.bench.check.command import check_case
from numbarnn.bench.peers import cudnn, peers
from numbarnn.compile.backend import BACKEND
from numbarnn.compile.specialise import jit
from numbarnn.kernels.persistent import exchange
from numbarnn.passes import launches

LIMIT_S = 2.0
CALLS = 2
SILENT_BLOCK = 0
SMALL_POLLS = 100  # in place of a million: in Python each takes a millisecond
PATIENCE = 2000  # turns of each thread, after which the simulator itself would end the run


def questions(asked):
    """Name -> (case, whether backward)."""
    if asked.small:
        cases = [Case("rnn_tanh", 3, 1, 5, (5,))]
    else:
        sizes = (50, 16, 256, (256, 256)), (1024, 16, 768, (768,))
        cases = [Case("lstm", *some, dtype="float16", gradients="y") for some in sizes]
    return {
        f"{case.cell} {case.options} {'backward' if backward else 'forward'}": (case, backward)
        for case in cases for backward in (False, True)
    }  # fmt: skip


def answer(name, asked):
    """Seconds until the error, its text, and whether layers work afterwards."""
    case, backward = questions(asked)[name]
    instance, engine = make_instance(case), engines.get(asked.device)
    tapes = [_forward(instance, asked) for _ in range(CALLS)] if backward else [None] * CALLS  # a failed one stays so
    polls = launches.POLLS, launches.POLLS_PER_STEP
    if asked.small:
        launches.POLLS, launches.POLLS_PER_STEP = SMALL_POLLS, 0
    try:
        with altered({(exchange, "make_publish"): _make_silent(exchange.make_publish)}, engine), _patience(asked):
            seconds, messages = [], []
            for tape in tapes:  # the first call compiles
                begin = time.perf_counter()
                messages.append(_error_of(lambda tape=tape: _call(instance, asked, tape), engine))
                seconds.append(time.perf_counter() - begin)
    finally:
        launches.POLLS, launches.POLLS_PER_STEP = polls
    with_cudnn = asked.device == "cuda" and cudnn.why_not() is None
    after = check_case(case, asked.device, ("persistent",), with_cudnn, with_torch=False)
    works = all(one.ok for one in after)
    said = all(message is not None and "gave up" in message for message in messages)
    soon = seconds[-1] <= LIMIT_S or asked.small
    return {
        "ok": said and soon and works, "seconds_until_error": seconds[-1], "with_compiling": seconds[0],
        "error": messages[-1], "works_afterwards": works, "limit_s": LIMIT_S,
        "afterwards": [one.as_row() for one in after if not one.ok],
    }  # fmt: skip


def _patience(asked):
    """A context in which the simulator, which a GPU's machine may lack, runs for long."""
    if asked.device != "sim":
        return nullcontext()
    from numbarnn.cuda import simulator

    return simulator.schedule(0, PATIENCE)


def _make_silent(make_publish):
    """`exchange.make_publish` for a kernel of which one block stores nothing."""

    def make(dtype, aligned):
        publish = make_publish(dtype, aligned)

        def silent(array, index, stored, valid):
            publish(array, index, stored, valid and cuda.blockIdx.x != SILENT_BLOCK)

        return jit(silent, BACKEND)

    return make


def _forward(instance, asked):
    """(layer, tape, dy) of a forward pass whose kernels publish."""
    layer = make_layer(instance.case, asked.device, instance.parameters, "persistent")
    x, state, dy = peers.inputs(layer, instance)
    return layer, layer.forward(x, state)[2], dy


def _call(instance, asked, tape):
    """The pass, by kernels that are made now."""
    if tape is not None:
        layer, of_forward, dy = tape
        layer.backward(of_forward, dy, retain=True)
    else:
        layer = make_layer(instance.case, asked.device, instance.parameters, "persistent")
        layer(*peers.inputs(layer, instance)[:2])
    layer.check()


def _error_of(call, engine):
    """What a call says as it fails; None where it does not."""
    try:
        with np.errstate(all="ignore"):
            call()
            engine.check()
    except RuntimeError as error:
        return str(error)
    return None


def told(answers):
    """Seconds until the error."""
    return [
        f"{one['question']}: {one['seconds_until_error']:.2f} s until the error (limit {one['limit_s']:.0f}); "
        f"{'works' if one['works_afterwards'] else 'DOES NOT WORK'} afterwards; {(one['error'] or 'NO ERROR')[:160]}"
        for one in answers if "seconds_until_error" in one
    ]  # fmt: skip
