"""cuDNN's binding, all of it: on a cuDNN and a device made of NumPy (fake_cudnn.py), and on a GPU.

    python -m pytest -m gpu tests/bench/test_cudnn_calls.py -rA

Results are compared with the float64 reference. Experiments (`cudnn_assumptions`) are about what
nobody documents: on a GPU each prints what cuDNN did, records it (--junitxml), and fails where that differs from what
this package does: then the package, or what is assumed and what cites it, has to change. Besides an NVIDIA GPU that
needs cuDNN (pip install nvidia-cudnn-cu12).
"""

import gc

import numpy as np
import pytest

from cudnn_assumptions import ASSUMED
from cudnn_problem import LAYOUTS_OF_WEIGHTS, OPTIONS, STANDARD, Problem, as_id, as_weight_space, layout_by_cudnn
from emulator.cupy_module import device_memory
from numbarnn.bench.peers import cudnn
from numbarnn.bench.peers.cudnn import descriptors
from numbarnn.common.precision import is_half

ON_A_GPU = [pytest.mark.gpu, pytest.mark.real_gpu]


@pytest.fixture
def real():
    """The session of cuDNN itself."""
    if problem := cudnn.why_not():
        pytest.skip(problem)
    return cudnn.default_session()


@pytest.fixture(params=["fake", pytest.param("real", marks=ON_A_GPU)])
def either(request):
    """A session of the fake cuDNN, and of the real one."""
    return request.getfixturevalue("session" if request.param == "fake" else "real")


def is_fake(session):
    return not isinstance(session.library, cudnn.library.Library)


def run(problem, session):
    """What cuDNN computes; skips, in cuDNN's words, where the real one refuses."""
    try:
        return problem.run(session)
    except cudnn.CudnnError as error:
        if error.refused and not is_fake(session):
            pytest.skip(str(error))
        raise


# ------------------------------------------------------------------------------------------------------------- results
@pytest.mark.parametrize("chosen", OPTIONS.values(), ids=OPTIONS)
def test_results_are_the_references(either, chosen):
    problem = Problem(**chosen)
    problem.assert_agrees(run(problem, either), "cuDNN")


@pytest.mark.parametrize("chosen", STANDARD.values(), ids=STANDARD)
def test_results_of_unequal_lengths_are_the_references(either, chosen):
    unsorted = (2, 1, 4)  # 0 is an experiment
    problem = Problem(**chosen, lengths=(4, 3, 1) if chosen.get("layout") == "seq_major_packed" else unsorted)
    problem.assert_agrees(run(problem, either), "cuDNN")


@pytest.mark.gpu
@pytest.mark.real_gpu
@pytest.mark.parametrize("cell", descriptors.CELLS)
@pytest.mark.parametrize("dtype", descriptors.DTYPES)
@pytest.mark.parametrize("algorithm", descriptors.ALGORITHMS)
def test_every_algorithm_agrees_with_reference(real, algorithm, dtype, cell):
    """Sizes that all of them take: multiples of 32, hidden sizes up to 128, a batch of 8."""
    if cell == "rnn_relu" and is_half(dtype):
        pytest.skip("where a ReLU's argument is nearer to 0 than a rounding, its gradient is all or nothing")
    problem = Problem(cell, 64, 64, T=5, B=8, algorithm=algorithm, dtype=dtype)
    problem.assert_agrees(run(problem, real), f"cuDNN {algorithm}")


@pytest.mark.parametrize("chosen", LAYOUTS_OF_WEIGHTS, ids=as_id)
def test_the_weight_space_is_cudnns_and_split_is_the_reverse_of_join(either, chosen):
    rnn = cudnn.Rnn(**chosen, session=either)
    flat = np.arange(rnn.space.size, dtype=np.float32)
    np.testing.assert_array_equal(rnn.join(rnn.split(flat)), flat, strict=True)
    with either.device:
        found = layout_by_cudnn(either.library, either.handle, rnn.descriptor, rnn.options)
    assert found == as_weight_space(chosen)


# ------------------------------------------------------------------------------------------------------ prepared calls
def prepared(problem, session):
    """A call of a problem to run again and again, and its network."""
    rnn = problem.rnn(session)
    call = rnn.call(problem.x, (problem.h, problem.c), problem.parameters, (problem.dy, None, None))
    call.choose(*call.functions)
    return call, rnn


@pytest.mark.parametrize("name", ("lstm", "gru-bfloat16", "lstm-projection", "gru-persist_dynamic", "rnn_tanh-small_h"))
@pytest.mark.parametrize("recorded", (True, False))
def test_a_prepared_call_gives_the_same_again_and_again(session, name, recorded):
    """The gradients of weights among them, which cuDNN adds to what is there; with a graph and without."""
    session.library.not_recorded = () if recorded else range(4)
    problem = Problem(**OPTIONS[name], padding_value=0.0, gradients=False)
    call, rnn = prepared(problem, session)
    calls, runs = len(session.library.calls), session.library.runs
    for _ in range(3):
        call.run()
    assert (len(session.library.calls) == calls) == recorded and session.library.runs == runs + 9
    assert session.library.stream is None, "back on the default stream"
    assert recorded == (call.why_no_graph is None)
    assert recorded or "cudnnRNNForward: CUDNN_STATUS_EXECUTION_FAILED" in call.why_no_graph
    values = call.results()
    values |= rnn.split(values.pop("dw"))
    problem.assert_agrees(values, "prepared fake cuDNN")


# ---------------------------------------------------------------------------------------------------------- ownership
def test_nothing_is_left_behind(session):
    gc.collect()
    used = device_memory.used
    call = prepared(Problem("lstm", 3, 5, 2, gradients=False), session)[0]
    call.run()
    with pytest.raises(cudnn.CudnnError):
        cudnn.Rnn("gru", 3, 5, proj_size=2, session=session)
    del call
    gc.collect()
    assert device_memory.used == used and not session.library.alive and not session.library.context.entered


# --------------------------------------------------------------------------------------------------------- experiments
@pytest.mark.parametrize("asked", ASSUMED)
def test_experiment(either, asked, record_property, capsys, request):
    """What computes as the reference does as assumed; on a GPU it is told what cuDNN did."""
    source, (assumed, ask) = str(cudnn.default_session()), ASSUMED[asked]
    found = ask()
    record_property("outcome", found)
    record_property("source", source)
    if not is_fake(either):
        with capsys.disabled():
            print(f"\n{request.node.name}: {found} ({source})")
    assert found == assumed, f"{source}: {found}; this package assumes: {assumed}"
