"""Training with few states kept on a GPU: agrees with float64, segments are replays, changed weights are noticed."""

import pytest

from cases import Case
from comparing import assert_same_bits, check_checkpoints
from needs import check_needs
from problems import make_problem
from running import on_engine, train

pytestmark = pytest.mark.gpu

SEQUENCES = dict(lengths=(7, 0, 3, 5), resets=True, padding_value=2.0)
CASES = (
    (Case("lstm", T=7, B=4, hidden=(33, 5), dropout=0.4), "persistent"),
    (Case("lstm", T=7, B=4, hidden=(33, 5), dropout=0.4, directions=2, **SEQUENCES), "persistent"),
    (Case("lstm", T=7, B=4, hidden=(33,), dtype="float16", **SEQUENCES), "persistent"),
    (Case("lstm", T=7, B=4, hidden=(33, 5), dropout=0.4, dtype="float16"), "wavefront"),
    (Case("gru", T=7, B=4, hidden=(5, 6), dropout=0.4, directions=2, batch_first=True, **SEQUENCES), "stepwise"),
)


@pytest.mark.parametrize("case, schedule", CASES, ids=[f"{case}-{schedule}" for case, schedule in CASES])
def test_agrees_with_float64(case, schedule):
    layer = check_checkpoints(case, "cuda", schedule)
    problem, streams = make_problem(case), layer.engine.streams
    results = []
    for _ in range(6):
        layer.training_calls = 0
        before = streams.recordings, streams.replays
        results.append(train(layer, problem)[0])
        assert_same_bits(results[-1], results[0])
    passes = 3 * 3 * (len(case.hidden) * 2 if case.directions == 2 else 1)  # forward twice, backward; three segments
    assert (streams.recordings, streams.replays - before[1]) == (before[0], passes)


@pytest.mark.parametrize("schedule", ["stepwise", "persistent"])
def test_what_is_needed_and_several_backward_passes(schedule):
    check_needs("lstm", "cuda", schedule, calls=4, checkpoint_every=2)


def test_changed_weights_and_x():
    """Weights that change before backward are noticed at the next check; of x there is a copy."""
    problem = make_problem(Case("gru", hidden=(5, 5)))
    layer = problem.layer("cuda", schedule="stepwise", checkpoint_every=3)
    x, dy = on_engine(layer.engine, [problem.x, problem.dy])
    expected = layer.engine.to_host(layer.backward(layer.forward(x)[2], dy).weights)
    tape = layer.forward(x)[2]
    x[...] = 0
    assert (layer.engine.to_host(layer.backward(tape, dy).weights) == expected).all()
    tape = layer.forward(x)[2]
    layer.weights[...] *= -1
    layer.backward(tape, dy)
    with pytest.raises(RuntimeError, match="the weights were changed"):
        layer.check()
