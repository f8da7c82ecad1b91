"""Calls that failed, on a GPU: all results are NaN, in recorded calls too. See simulated/test_trouble_simulated.py."""

import time

import numpy as np
import pytest
from numba import cuda

import emulator
from cases import Case
from mutants import altered
from numbarnn import engines
from numbarnn.bench import cases as bench_cases
from numbarnn.bench.check import check_case
from numbarnn.bench.peers import peers
from numbarnn.compile.specialise import jit
from numbarnn.cuda.backend import backend
from numbarnn.engines.gpu import launches
from numbarnn.kernels import error_flag
from numbarnn.kernels.persistent import exchange
from problems import make_problem
from running import on_engine

CASES = [
    Case("lstm", T=9, B=5, hidden=(33, 70, 20), directions=2),
    Case("gru", T=5, B=2, hidden=(40, 24), dtype="float16"),
]


def arrays_in(*values):
    """The arrays of results and states, one after the other."""
    return [part for value in values for part in (arrays_in(*value) if isinstance(value, tuple | list) else [value])]


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_all_results_of_a_call_that_failed_are_nan(case):
    """The word of a call is set between forward and backward, in calls that are recorded and replayed and others that
    go well in between; nothing waits for the device before `check`."""
    engine = engines.get("cuda")
    problem = make_problem(case)
    layer = problem.layer("cuda", schedule="persistent")
    x, state, dy, dstate = on_engine(engine, [problem.x, problem.state, problem.dy, problem.dstate])
    replays = engine.streams.replays
    for turn in range(6):
        fails = turn % 3 == 2
        y, _, tape = layer.forward(x, state)
        dw = engine.zeros(layer.weights.shape, case.dtype)
        if fails:
            call = tape.forward
            flag = engine.array_at(call.program.error_flag, call.reserve)
            flag.fill(error_flag.timeout_of(1, 0, backward=True) + 4)
        gradients = layer.backward(tape, dy, dstate, dw=dw)
        found = [np.isnan(array.get().astype("float32")) for array in arrays_in(gradients.x, gradients.state, dw)]
        assert all(nan.all() if fails else not nan.any() for nan in found)
        assert not np.isnan(y.get().astype("float32")).any()
        if fails:
            with pytest.raises(RuntimeError) as error:
                layer.check()
            assert repr(layer) in str(error.value) and "at step 4 of the backward pass" in str(error.value)
        layer.check()
        del y, tape, dw, gradients  # so that the next call gets the same memory
    assert engine.streams.replays > replays


@pytest.mark.gpu
@pytest.mark.parametrize("training", (False, True), ids=("inference", "training"))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_launch_that_gives_up_poisons_results(monkeypatch, case, training):
    """The launch does it itself in inference and in training; later calls are right, recorded ones too."""
    engine = engines.get("cuda")
    problem = make_problem(case)
    x, state = on_engine(engine, [problem.x, problem.state])
    hasty, patient = (problem.layer("cuda", schedule="persistent") for _ in range(2))

    def results(layer):
        y, state_after = layer.forward(x, state)[:2] if training else layer(x, state)
        return [np.isnan(array.get().astype("float32")) for array in arrays_in(y, state_after)]

    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(launches, "POLLS", 0)  # nobody waits
            patch.setattr(launches, "POLLS_PER_STEP", 0)
            assert all(nan.all() for nan in results(hasty))
        with pytest.raises(RuntimeError, match=r"timed out: .* of the forward pass"):
            hasty.check()
        assert not any(nan.any() for nan in results(patient))
        patient.check()


def test_on_the_cpu_there_is_nothing_to_find():
    """Calls fail where they are made."""
    assert Case("gru", hidden=(5,)).layer("cpu").check() is None


LIMIT_S = 2.0
SMALL = bench_cases.Case("rnn_tanh", 3, 1, 5, (8,), gradients="y", dtype="float16")
SILENT = [SMALL] if emulator.is_wanted() else [
    bench_cases.Case("lstm", 50, 16, 256, (256, 256), gradients="y", dtype="float16"),
    bench_cases.Case("lstm", 1024, 16, 768, (768,), gradients="y", dtype="float16"),
]  # fmt: skip


def silenced(make_publish):
    """`exchange.make_publish` for a kernel whose first block stores nothing."""

    def make(dtype, aligned):
        publish = make_publish(dtype, aligned)

        def silent(array, index, stored, valid):
            publish(array, index, stored, valid and cuda.blockIdx.x != 0)

        return jit(silent, backend())

    return make


@pytest.mark.gpu
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("case", SILENT, ids=str)
def test_a_block_that_publishes_nothing_ends_in_an_error(case, backward, monkeypatch):
    """Within two seconds, and the next call works."""
    if emulator.is_wanted():  # each look takes long there
        monkeypatch.setattr(launches, "POLLS", 100)
        monkeypatch.setattr(launches, "POLLS_PER_STEP", 0)
    instance, engine = bench_cases.make_instance(case), engines.get("cuda")
    layer = bench_cases.make_layer(case, "cuda", instance.parameters, "persistent")
    x, state, dy = peers.inputs(layer, instance)
    tapes = [layer.forward(x, state)[2] for _ in range(2)]  # a tape whose backward failed stays so
    with altered({(exchange, "make_publish"): silenced(exchange.make_publish)}, engine):
        for tape in tapes:  # the first call compiles
            begin = time.perf_counter()
            with pytest.raises(RuntimeError, match="timed out: layer"), np.errstate(all="ignore"):
                layer.backward(tape, dy, retain=True) if backward else layer(x, state)
                layer.check()
    assert emulator.is_wanted() or time.perf_counter() - begin <= LIMIT_S
    assert all(one["ok"] for one in check_case(SMALL, "cuda", ("persistent",), with_torch=False))
