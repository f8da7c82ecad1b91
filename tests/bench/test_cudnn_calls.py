"""cuDNN's binding, all of it: on a cuDNN and a device made of NumPy (fake_cudnn.py), and on a GPU.

    python -m pytest -m gpu tests/bench/test_cudnn_calls.py -rA

Results are compared with the float64 reference. Experiments (`cudnn_assumptions`) are about what
nobody documents: on a GPU each prints what cuDNN did, records it (--junitxml), and fails where that differs from what
this package does: then the package, or what is assumed and what cites it, has to change. Besides an NVIDIA GPU that
needs cuDNN (pip install nvidia-cudnn-cu12).
"""

import gc
from dataclasses import replace

import pytest

from cudnn_assumptions import ASSUMED
from emulator.cupy_module import device_memory
from numbarnn.bench import accuracy
from numbarnn.bench.cases import PEERS_CELLS, Case, make_instance
from numbarnn.bench.expected import reference_results
from numbarnn.bench.peers import cudnn
from numbarnn.bench.peers.cudnn.descriptors import ALGORITHMS, DTYPES
from numbarnn.bench.peers.cudnn_peer import CudnnNetwork
from numbarnn.bench.shapes import TRAINING
from numbarnn.common.precision import is_half

PACKED, TF32 = {"layout": "seq_major_packed"}, ("default", "tensor_op_allow_conversion")
FORMS = {f"{algorithm}-{dtype}": (dtype, {"algorithm": algorithm}) for algorithm in ALGORITHMS for dtype in DTYPES}
FORMS |= {"packed": ("float32", PACKED)} | {math: ("float32", {"math_type": math}) for math in TF32}
FLOORS = 8  # of rounding: cuDNN's persistent algorithms have other functions


def is_fake(session):
    return not isinstance(session.library, cudnn.library.Library)


def prepared(cell, sizes=(4, 3, 3, (5, 5)), chosen=None, **options):
    """(instance, network, a call to run again and again) of a training pass."""
    instance = make_instance(Case(cell, *sizes, gradients="y", **options))
    network = CudnnNetwork(instance, **(chosen or {}))
    return instance, network, network.prepare(TRAINING)


def assert_agrees(instance, found, rounded=False):
    """Every quantity is near the reference's; rounded: products of float32 are of numbers of 10 bits."""
    wanted, case = reference_results(instance), instance.case
    limit = FLOORS * accuracy.floor(replace(case, dtype="float16") if rounded else case)
    assert found.keys() == wanted.keys()
    for name, value in found.items():
        assert accuracy.shape_problem(value, wanted[name], case.dtype) is None, name
        assert accuracy.error(value, wanted[name]) <= limit, name


# ------------------------------------------------------------------------------------------------------------- results
@pytest.mark.parametrize("cell", PEERS_CELLS)
@pytest.mark.parametrize("form", FORMS)
def test_results_are_the_references(either, form, cell):
    """In every dtype, by every algorithm, layout and math, in both directions; options: test_cudnn_peer.py. On a GPU
    with sizes that all algorithms take: multiples of 32, hidden sizes up to 128, a batch of 8."""
    dtype, chosen = FORMS[form]
    if cell == "rnn_relu" and is_half(dtype):
        pytest.skip("where a ReLU's argument is nearer to 0 than a rounding, its gradient is all or nothing")
    sizes = (4, 3, 3, (5, 5)) if is_fake(either) else (5, 8, 64, (64, 64))
    try:
        instance, network, call = prepared(cell, sizes, chosen, dtype=dtype, bidirectional=True)
    except cudnn.CudnnError as error:
        assert error.refused and (not is_fake(either) or (dtype == "float64" and form != "standard-float64"))
        pytest.skip(str(error))
    call.run()
    assert_agrees(instance, network.results(call), chosen.get("math_type") in TF32)


# ------------------------------------------------------------------------------------------------------ prepared calls
AGAIN = {
    "lstm": ("lstm", {}, {}), "bfloat16": ("gru", {"dtype": "bfloat16"}, {}), "packed": ("rnn_tanh", {}, PACKED),
    "projection": ("lstm", {"proj_size": 2}, {}), "dynamic": ("gru", {}, {"algorithm": "persist_dynamic"}),
}  # fmt: skip


@pytest.mark.parametrize("name", AGAIN)
@pytest.mark.parametrize("recorded", (True, False))
def test_a_prepared_call_gives_the_same_again_and_again(session, name, recorded):
    """The gradients of weights among them, which cuDNN adds to what is there; with a graph and without."""
    session.library.not_recorded = () if recorded else range(4)
    cell, options, chosen = AGAIN[name]
    instance, network, call = prepared(cell, chosen=chosen, **options)
    calls, runs = len(session.library.calls), session.library.runs
    for _ in range(3):
        call.run()
    assert (len(session.library.calls) == calls) == recorded and session.library.runs == runs + 9
    assert session.library.stream is None, "back on the default stream"
    assert recorded == (call.why_no_graph is None)
    assert recorded or "cudnnRNNForward: CUDNN_STATUS_EXECUTION_FAILED" in call.why_no_graph
    assert_agrees(instance, network.results(call))


# ---------------------------------------------------------------------------------------------------------- ownership
def test_nothing_is_left_behind(session):
    gc.collect()
    used = device_memory.used
    _, network, call = prepared("lstm")
    call.run()
    with pytest.raises(cudnn.CudnnError):
        cudnn.Rnn("gru", 3, 5, proj_size=2, session=session)
    del network, call
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
