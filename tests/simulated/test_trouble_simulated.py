"""Calls that fail on the device, in the simulator: their results are NaN, the next call or `check` says whose."""

from contextlib import contextmanager

import numpy as np
import pytest

from cases import Case
from comparing import assert_close
from grouped_tiles import GroupedTile, launches_of
from mutants import PATTERNS, altered, mutated, names_of, source_of, written_anew
from numbarnn import engines
from numbarnn.cuda import ptx, simulator
from numbarnn.cuda.language import cuda
from numbarnn.engines.gpu import launches, profiles
from numbarnn.kernels.persistent import ends, exchange
from problems import make_problem
from running import infer

PATIENCE = 1000  # turns in vain before the simulator reports a livelock: more than a kernel here waits


@pytest.fixture
def engine(change):
    engine = engines.get("sim")
    yield engine
    engine._told[1][0] = 0  # a test that fails says nothing to the next one


@contextmanager
def nobody_looks(engine):
    """Calls return without a look at whether they failed, as if they still ran on a GPU."""
    with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
        patch.setattr(engine, "raise_if_failed", lambda: None, raising=False)
        yield patch


@contextmanager
def silence(engine, polls=40, patience=PATIENCE):
    """Block 1 of every persistent kernel publishes nothing; nobody waits for long, nobody looks."""
    store = ptx.store

    def silent_store(array, index, value):
        is_flag = array.dtype == np.int64 and len(array) == 1
        if is_flag or cuda.blockIdx.x != 1:
            store(array, index, value)

    with nobody_looks(engine) as patch, simulator.schedule(3, patience), altered({(ptx, "store"): silent_store}):
        patch.setattr(launches, "POLLS", polls)
        patch.setattr(launches, "POLLS_PER_STEP", 0)
        yield patch


def all_nan(*arrays):
    return all(np.isnan(array.astype("float32")).all() for array in arrays)


def flat(state):
    """The arrays of a state, one after the other."""
    return [array for part in state for array in flat(part)] if isinstance(state, tuple | list) else [state]


CASES = [
    Case("gru", T=3, B=2, hidden=(5, 3), directions=2),  # results of several launches of `poison`
    Case("lstm", T=3, B=2, hidden=(5,), dtype="float16"),
    pytest.param(Case("lstm", T=3, B=2, hidden=(5, 5)), marks=pytest.mark.full),
    pytest.param(Case("gru", T=3, B=2, hidden=(5,), dtype="bfloat16"), marks=pytest.mark.full),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_all_results_of_a_call_that_failed_are_nan(engine, case):
    """Backward from a tape that is right; inference, forward, and backward from a tape that is not."""
    problem = make_problem(case)
    layer = problem.layer("sim", schedule="persistent")
    y, state, tape = layer.forward(problem.x, problem.state)
    dw = np.ones_like(layer.weights)
    with silence(engine):
        gradients = layer.backward(tape, problem.dy, problem.dstate, dw=dw)
        assert all_nan(gradients.x, *flat(gradients.state), dw)
    assert not all_nan(y) and not any(map(all_nan, flat(state)))
    with pytest.raises(RuntimeError, match=r"timed out: layer \d, direction \d, .* of the backward pass"):
        layer.check()

    with silence(engine):
        assert all_nan(*(array for result in layer(problem.x, problem.state) for array in flat(result)))
        y, state, tape = layer.forward(problem.x, problem.state)
        assert all_nan(y, *flat(state))
    with pytest.raises(RuntimeError, match="forward pass"):
        layer.check()
    layer.check()  # said once

    with nobody_looks(engine):
        gradients = layer.backward(tape, problem.dy, problem.dstate)
        assert all_nan(gradients.x, *flat(gradients.state), gradients.weights)
    with pytest.raises(RuntimeError, match="forward pass"):  # where it began
        layer.check()


def a_launch_poisons(engine, monkeypatch):
    """Whether calls that fail return NaN alone, and others do not: as on a GPU they share a flag and a count. The last
    block gives up at once, while the blocks of the first layer go on."""
    case, words = Case("lstm", T=5, B=2, hidden=(5, 5)), (np.zeros(1, np.int64), np.zeros(1, np.int64))
    problem, (launch, *_) = make_problem(case), launches_of(case)
    layer, make_wait = problem.layer("sim", schedule="persistent"), exchange.make_wait

    def make_impatient_wait(tile, group):
        wait = make_wait(tile, group)

        def impatient(thread, role, turn):
            gives_up = cuda.blockIdx.x == launch.blocks - 1
            wait(thread, role._replace(limit=1) if gives_up else role, turn)

        return impatient

    monkeypatch.setattr(engine, "launch_words", lambda: words, raising=False)
    for fails in (False, True, True, False):
        with nobody_looks(engine), altered({(exchange, "make_wait"): make_impatient_wait if fails else make_wait}):
            results = [array for result in layer(problem.x, problem.state) for array in flat(result)]
        if any(word[0] for word in words) or any(all_nan(array) != fails for array in results):
            return False
        if bool(engine._told[1][0]) != fails:
            return False
        engine._told[1][0] = 0
    return True


def test_a_launch_poisons_the_results_of_a_call_that_failed(engine, monkeypatch):
    assert a_launch_poisons(engine, monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("function", ("make_leave", "make_poison"))
def test_a_missed_poison_is_found(engine, monkeypatch, function):
    """See test_mutants.py."""
    left, made = [], list(names_of(source_of(ends, function)))
    for pattern, number in made:
        text = mutated(source_of(ends, function), pattern, number)
        with altered({(ends, function): written_anew(ends, function, text)}):
            try:
                missed = a_launch_poisons(engine, monkeypatch)
            except RuntimeError:  # threads that are never let go
                missed = False
        left += [f"{pattern} {number}"] * missed
        engine._told[1][0] = 0
    assert made and set(PATTERNS) > {pattern for pattern, _ in made} and len(left) <= len(made) // 3, left


EXCHANGES = {
    "h": (Case("gru", T=3, B=1, hidden=(5, 5)), {}),
    "a product within the step": (Case("chain", T=3, B=2, hidden=(9,)), {"warps": (4,)}),
    "a sum": (Case("normed", T=3, B=2, hidden=(9,)), {}),
    "a projection": (Case("lstm", proj_size=5, T=3, B=2, hidden=(9,)), {"warps": (2,)}),
    "a group of chunks": (GroupedTile(Case("rnn_tanh", T=3, B=2, hidden=(40,)), "fma", "shared", 20), {}),
}


@pytest.mark.parametrize(
    "case, device",
    [pytest.param(*one, id=name, marks=[pytest.mark.full] * ("pro" in name)) for name, one in EXCHANGES.items()],
)
def test_a_block_that_never_publishes_is_reported_and_then_the_layer_works_again(
    engine, change, monkeypatch, case, device
):
    if isinstance(case, GroupedTile):
        case.choose(monkeypatch, "sim", profiles.SIMULATOR)
        case = case.case
    else:
        change(**device)
    problem = make_problem(case)
    layer = problem.layer("sim", schedule="persistent")
    tape = layer.forward(problem.x)[2]
    for way, call in (("forward", lambda: layer(problem.x)), ("backward", lambda: layer.backward(tape, problem.dy))):
        with silence(engine, polls=100):
            call()
        with pytest.raises(RuntimeError, match=rf"timed out: layer \d, direction \d, .* at step \d of the {way} pass"):
            layer.check()
    assert_close(case, infer(layer, problem), infer(problem.layer("sim", schedule="stepwise"), problem))


def test_the_next_call_of_another_layer_names_the_one_that_failed(engine):
    """And is not harmed itself, nor is the layer that failed when it is called again."""
    case, other = Case("lstm", T=3, B=2, hidden=(5, 5)), Case("gru", T=2, B=2, hidden=(5,))
    problem, other_problem = make_problem(case), make_problem(other)
    layer, innocent = (each.layer("sim", schedule="persistent") for each in (problem, other_problem))
    with silence(engine):
        layer(problem.x, problem.state)
    calls = innocent.training_calls
    with pytest.raises(RuntimeError) as error:
        innocent.forward(other_problem.x, other_problem.state)
    assert repr(layer) in str(error.value) and repr(innocent) not in str(error.value)
    assert "with schedule='persistent' failed: " in str(error.value) and "make the layer with" in str(error.value)
    assert innocent.training_calls == calls  # nothing was done
    innocent.check()
    assert_close(
        other, infer(innocent, other_problem), infer(other_problem.layer("sim", schedule="stepwise"), other_problem)
    )
    assert_close(case, infer(layer, problem), infer(problem.layer("sim", schedule="stepwise"), problem))


def test_nobody_waits_on_once_a_block_has_given_up(engine):
    """However many looks each is allowed: the limit of all but one warp is far beyond the simulator's patience."""
    case = Case("rnn_tanh", T=2, B=1, hidden=(5, 5))
    problem, (launch, *_) = make_problem(case), launches_of(case)
    layer = problem.layer("sim", schedule="persistent")
    make_wait = exchange.make_wait

    def make_impatient_wait(tile, group):
        wait = make_wait(tile, group)

        def impatient(thread, role, turn):
            wait(thread, role._replace(limit=10) if cuda.blockIdx.x == 0 else role, turn)

        return impatient

    assert launch.blocks > 2
    with silence(engine, polls=10**6, patience=3 * exchange.POLLS_BEFORE_SLEEP) as patch:
        patch.setattr(exchange, "make_wait", make_impatient_wait)
        assert all_nan(layer(problem.x)[0])
    with pytest.raises(
        RuntimeError, match=r"timed out: layer 0, direction 0, .* at step 0 .* other blocks of the layer"
    ):
        layer.check()
