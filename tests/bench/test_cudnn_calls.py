"""cuDNN's binding, all of it: on a cuDNN and a device made of NumPy (fake_cudnn.py), and on a GPU.

    python -m pytest -m gpu tests/bench/test_cudnn_calls.py -rA

Results are compared with the float64 reference. Experiments (`numbarnn.bench.peers.cudnn.assumptions`) are about what
nobody documents: on a GPU each prints what cuDNN did, records it (--junitxml), and fails where that differs from what
this package does: then the package, or what is assumed and what cites it, has to change. Besides an NVIDIA GPU that
needs cuDNN (pip install nvidia-cudnn-cu12).
"""

import gc

import numpy as np
import pytest

from cudnn_problem import LAYOUTS_OF_WEIGHTS, OPTIONS, STANDARD, Problem, as_id, as_weight_space
from emulator import cupy_module
from emulator.cupy_module import device_memory
from numbarnn.bench.peers import cudnn
from numbarnn.bench.peers.cudnn import assumptions, options
from numbarnn.bench.peers.cudnn.assumptions import ASSUMED
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


def distance(values, others):
    """Largest difference of two arrays."""
    return float(np.max(np.abs(np.asarray(values, np.float64) - np.asarray(others, np.float64)), initial=0.0))


# ------------------------------------------------------------------------------------------------------------- results
@pytest.mark.parametrize("chosen", OPTIONS.values(), ids=OPTIONS)
def test_results_are_the_references(either, chosen):
    problem = Problem(**chosen)
    problem.assert_agrees(run(problem, either), "cuDNN")


@pytest.mark.parametrize("chosen", STANDARD.values(), ids=STANDARD)
def test_results_of_unequal_lengths_are_the_references(either, chosen):
    unsorted = (2, 0 if is_fake(either) else 1, 4)  # 0: an experiment, on a GPU
    problem = Problem(**chosen, lengths=(4, 3, 1) if chosen.get("layout") == "seq_major_packed" else unsorted)
    problem.assert_agrees(run(problem, either), "cuDNN")


@pytest.mark.gpu
@pytest.mark.real_gpu
@pytest.mark.parametrize("cell", options.CELLS)
@pytest.mark.parametrize("dtype", options.DTYPES)
@pytest.mark.parametrize("algorithm", options.ALGORITHMS)
def test_every_algorithm_agrees_with_reference(real, algorithm, dtype, cell):
    """Sizes that all of them take: multiples of 32, hidden sizes up to 128, a batch of 8."""
    if cell == "rnn_relu" and is_half(dtype):
        pytest.skip("where a ReLU's argument is nearer to 0 than a rounding, its gradient is all or nothing")
    problem = Problem(cell, 64, 64, T=5, B=8, algorithm=algorithm, dtype=dtype)
    problem.assert_agrees(run(problem, real), f"cuDNN {algorithm}")


@pytest.mark.parametrize("layers, bidirectional", [(1, True), (3, False), (2, True)])
@pytest.mark.parametrize("cell", options.CELLS)
def test_stacks_agree_with_reference(either, cell, layers, bidirectional):
    problem = Problem(cell, 7, 33, layers, bidirectional=bidirectional, T=7, B=3, dtype="float64")
    problem.assert_agrees(run(problem, either), "cuDNN")


@pytest.mark.parametrize("cell", options.CELLS)
def test_what_is_not_given_is_zero(either, cell):
    problem = Problem(cell, 3, 5, 2, bidirectional=True, states=False, gradients=False)
    problem.assert_agrees(run(problem, either), "cuDNN")


def test_layouts_agree_bit_for_bit(either):
    kinds = dict(num_layers=2, bidirectional=True, lengths=(4, 3, 1), dtype="float64")
    runs = [Problem("lstm", 3, 5, layout=layout, **kinds) for layout in options.LAYOUTS]
    first, *others = [problem.run(either) for problem in runs]
    for name, value in ((name, value) for other in others for name, value in other.items()):
        mask = ~runs[0].padding if name in ("y", "dx") else ...
        np.testing.assert_array_equal(value[mask], first[name][mask], err_msg=name)


def test_two_runs_give_the_same_bits(either):
    first, second = (Problem("gru", 16, 33, 2, T=7, B=5).run(either) for _ in range(2))
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


def test_inference_equals_training_and_keeps_no_reserve(either):
    problem = Problem("lstm", 3, 5, 2, dtype="float64")
    rnn, arguments = problem.rnn(either), (problem.x, problem.h, problem.c, problem.parameters)
    training, inference = rnn.forward(*arguments)[:3], rnn.forward(*arguments, training=False)
    assert inference[3] is None
    for one, other in zip(training, inference, strict=False):
        assert distance(one, other) <= problem.limit


def test_dw_is_added_to_and_left_alone(either):
    problem = Problem("lstm", 3, 5, dtype="float64")
    rnn = problem.rnn(either)
    reserve = rnn.forward(problem.x, problem.h, problem.c, problem.parameters)[3]
    rnn.backward_data(reserve, problem.dy)
    once = rnn.backward_weights(reserve)
    start = np.ones_like(once)
    assert distance(rnn.backward_weights(reserve, start), once + 1) <= problem.limit and (start == 1).all()


@pytest.mark.gpu
@pytest.mark.real_gpu
def test_dropout_is_between_layers_and_only_in_training(real):
    """Its masks are cuDNN's own: one seed gives one y, another seed another y, and inference has none."""
    problem = Problem("gru", 3, 33, 2, dtype="float64")
    arguments = (problem.x, problem.h, None, problem.parameters)
    first, same, other = (cudnn.Rnn("gru", 3, 33, 2, dropout=0.5, seed=seed, dtype="float64") for seed in (1, 1, 2))
    ys = [rnn.forward(*arguments)[0] for rnn in (first, same, other)]
    np.testing.assert_array_equal(ys[0], ys[1])
    assert distance(ys[0], ys[2]) > 1e-3
    y = first.forward(*arguments, training=False)[0]
    assert distance(y, problem.expected()["y"]) <= problem.limit


def test_unequal_lengths_are_refused_by_persistent_kernels(session):
    problem = Problem("gru", 3, 5, algorithm="persist_static", lengths=(4, 2, 4))
    with pytest.raises(cudnn.CudnnError, match="cudnnGetRNNTempSpaceSizes: CUDNN_STATUS_NOT_SUPPORTED"):
        problem.run(session)


def test_a_dynamic_kernel_is_built_once_per_batch(session):
    problem = Problem("lstm", 3, 5, algorithm="persist_dynamic")
    rnn = problem.rnn(session)
    for batch in (3, 3, 2):
        rnn.forward(problem.x[:, :batch], weights=problem.parameters)
    assert session.library.calls.count("cudnnBuildRNNDynamic") == 2


def test_padding_that_cudnn_does_not_fill_shows(session):
    problem = Problem("gru", 3, 5, lengths=(2, 4, 1))
    rnn = problem.rnn(session)
    arguments = (problem.x, None, None, problem.parameters, problem.lengths)
    assert (rnn.forward(*arguments, padding_value=7.0)[0][2:, 0] == 7).all()
    assert np.isnan(rnn.forward(*arguments, padding_value=None)[0][2:, 0]).all()


@pytest.mark.parametrize("chosen", LAYOUTS_OF_WEIGHTS, ids=as_id)
def test_the_weight_space_is_cudnns_and_split_is_the_reverse_of_join(either, chosen):
    rnn = cudnn.Rnn(**chosen, session=either)
    flat = np.arange(rnn.weight_space_size, dtype=np.float32)
    np.testing.assert_array_equal(rnn.join(rnn.split(flat)), flat, strict=True)
    places = {name: tuple(place) for name, place in rnn.places.items()}
    assert (places, rnn.weight_space_size) == as_weight_space(chosen)
    assert rnn.weight_space_bytes == 4 * rnn.weight_space_size


# ------------------------------------------------------------------------------------------------------ prepared calls
def prepared(problem, session, training=True):
    """A `Prepared` of a problem, and its network."""
    rnn = problem.rnn(session)
    gradients = {"dy": problem.dy, "dhy": problem.dhy, "dcy": problem.dcy} if training else {}
    return rnn.prepare(problem.x, problem.h, problem.c, problem.parameters, **gradients), rnn


@pytest.mark.parametrize("name", ("lstm", "gru-bfloat16", "lstm-projection", "gru-persist_dynamic", "rnn_tanh-small_h"))
@pytest.mark.parametrize("recorded", (True, False))
def test_a_prepared_call_gives_the_same_again_and_again(session, name, recorded):
    """The gradients of weights among them, which cuDNN adds to what is there; with a graph and without."""
    session.library.not_recorded = () if recorded else range(4)
    problem = Problem(**OPTIONS[name], padding_value=0.0)
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


@pytest.mark.gpu
@pytest.mark.real_gpu
@pytest.mark.parametrize("algorithm", options.ALGORITHMS)
def test_prepared_calls_give_what_calls_give(real, algorithm, record_property):
    """Again and again, as one CUDA graph where cuDNN can be recorded; which that is, is recorded."""
    problem = Problem("lstm", 64, 64, T=5, B=8, algorithm=algorithm, padding_value=0.0)
    try:
        call, rnn = prepared(problem, real)
    except cudnn.CudnnError as error:
        pytest.skip(str(error))
    record_property("graph", call.why_no_graph or "recorded")
    for _ in range(3):
        call.run()
    values = call.results()
    problem.assert_agrees(values | rnn.split(values.pop("dw")), f"cuDNN {algorithm}, prepared")


class Allocations(cupy_module.MemoryHook):
    """How many there are on the emulated GPU, where nothing is copied to but new arrays."""

    count = 0

    def malloc_preprocess(self, **arguments):
        self.count += 1


def test_a_prepared_call_packs_and_copies_once(session):
    problem = Problem("lstm", 3, 5)
    call, _ = prepared(problem, session)
    calls, runs = len(session.library.calls), session.library.runs
    with Allocations() as allocations:
        for _ in range(3):
            call.run()
    assert allocations.count == 0 and session.library.runs == runs + 9
    assert len(session.library.calls) == calls, "a launch calls nothing of cuDNN's"
    assert call.why_no_graph is None


def test_a_prepared_inference_does_no_more_than_forward(session):
    problem = Problem("gru", 3, 5)
    call, _ = prepared(problem, session, training=False)
    call.run()
    assert set(call.results()) == {"y", "hy"}
    assert session.library.calls.count("cudnnRNNForward") == 2, "once to begin with, once recorded"
    assert "cudnnRNNBackwardData_v8" not in session.library.calls
    np.testing.assert_array_equal(call.results()["y"], problem.rnn(session).forward(problem.x, problem.h, None,
                                  problem.parameters, training=False)[0])  # fmt: skip


def test_what_is_wrong_is_refused_before_a_prepared_call_runs(session):
    problem = Problem("lstm", 3, 5)
    rnn = problem.rnn(session)
    with pytest.raises(ValueError, match=r"dy must have shape \(4, 3, 5\)"):
        rnn.prepare(problem.x, weights=problem.parameters, dy=problem.dy[:2])
    with pytest.raises(TypeError, match="weights are missing"):
        rnn.prepare(problem.x, dy=problem.dy)


# ---------------------------------------------------------------------------------------------------------- ownership
def test_nothing_is_left_behind(session):
    gc.collect()
    used = device_memory.used
    problem = Problem("lstm", 3, 5, 2, dropout=0.5)
    rnn = problem.rnn(session)
    reserve = rnn.forward(problem.x, problem.h, problem.c, problem.parameters)[3]
    rnn.backward_data(reserve, problem.dy)
    rnn.backward_weights(reserve)
    call = prepared(Problem("lstm", 3, 5, 2), session)[0]
    call.run()
    with pytest.raises(cudnn.CudnnError):
        cudnn.Rnn("gru", 3, 5, proj_size=2, session=session)
    del rnn, reserve, call
    gc.collect()
    assert device_memory.used == used and not session.library.alive and not session.library.context.entered


def no_room(size):
    raise MemoryError(size)


def test_a_failed_call_leaves_nothing_behind(session, monkeypatch):
    """Memory runs out at each allocation in turn."""
    problem, allocate = Problem("lstm", 3, 5), device_memory.allocate
    rnn = problem.rnn(session)
    gc.collect()
    used, alive = device_memory.used, len(session.library.alive)
    for allocations in range(100):
        left = iter(range(allocations))
        monkeypatch.setattr(device_memory, "allocate", lambda size, left=left: allocate(size) if next(left, None)
                            is not None else no_room(size))  # fmt: skip
        try:
            rnn.forward(problem.x, problem.h, problem.c, problem.parameters)
        except RuntimeError as error:
            assert "no room" in str(error)
        else:
            break
        gc.collect()
        assert (device_memory.used, len(session.library.alive)) == (used, alive)
    assert allocations == 9, "x, hx, cx, weights, y, hy, cy, work and reserve space"


def test_a_missing_device_is_said_when_an_rnn_is_made():
    if cudnn.why_not() is None:
        pytest.skip("there is one")
    with pytest.raises(RuntimeError, match=r"pip install|NVIDIA GPU"):
        cudnn.Rnn("lstm", 3, 5)


# --------------------------------------------------------------------------------------------------------- experiments
@pytest.mark.parametrize("asked", ASSUMED)
def test_experiment(either, asked, record_property, capsys, request):
    """What computes as the reference does as assumed; on a GPU it is told what cuDNN did."""
    if is_fake(either) and asked == "everything is dropped":
        pytest.skip("of dropout the fake has none")
    source, (assumed, ask) = str(cudnn.default_session()), ASSUMED[asked]
    found = ask()
    record_property("outcome", found)
    record_property("source", source)
    if not is_fake(either):
        with capsys.disabled():
            print(f"\n{request.node.name}: {found} ({source})")
    assert found == assumed, f"{source}: {found}; this package assumes: {assumed}"


def test_another_formula_is_told(session, monkeypatch):
    computed = assumptions._computed
    monkeypatch.setattr(assumptions, "_computed", lambda instance: {"y": computed(instance)["y"] + 0.01})
    assert ASSUMED["recurrent bias of the GRU"].ask() == "neither formula"


def test_what_differs_is_named(session, monkeypatch):
    computed = assumptions._computed

    def wrong(instance):
        found = computed(instance)
        return found | {"dx": np.where(instance.padding[:, :, None], np.nan, found["dx"] + 1), "dhx": [np.nan]}

    monkeypatch.setattr(assumptions, "_computed", wrong)
    assert ASSUMED["padding of x and dy"].ask() == "read: dx, dhx differ"
    assert ASSUMED["padding of dx"].ask() == "not written"
    assert ASSUMED["unsorted lengths"].ask() == "dhx differ"


@pytest.mark.parametrize(
    ("cy", "dcx", "found"), [(1.0, 0.0, "zero"), (1.0, 0.5, "straight through"), (2.0, 0.5, "cy = 2.0, not clipped")]
)
def test_gradients_of_the_clip_are_told_apart(monkeypatch, cy, dcx, found):
    monkeypatch.setattr(assumptions, "one_unit", lambda *_, **__: (cy, dcx, 0.5))
    assert ASSUMED["gradient of the clip"].ask() == found
