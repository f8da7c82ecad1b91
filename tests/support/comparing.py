"""Results compared with what is expected, and one comparison for every cell, option and engine.

    check(Case("lstm", T=7, B=3, hidden=(33, 5), directions=2, lengths=(7, 0, 3)), "cpu", "wavefront")

runs inference and training, forward and backward, with every new buffer of the engine filled with NaN first, and
compares y, the final states, dx, the initial states' gradients and the gradient of every parameter, each with the
error that its `cases.Case` allows. Dimensions as in `numbarnn`.
"""

from collections.abc import Mapping

import numpy as np

from numbarnn.engines.cpu.engine import PACKED_FROM
from problems import make_problem, plain
from running import infer, not_prepared, train, train_and_draw

CALLS = 4  # of one layer with one problem: eager, recorded, replayed, replayed again


def error(value, expected):
    """max |value - expected| / max(1, max |expected|), of arrays or of lists of arrays; NaN where `value` has one."""
    value, expected = flat(value), flat(expected)
    if value.size == 0:
        return 0.0
    return float(np.max(np.abs(value - expected)) / max(1.0, np.max(np.abs(expected))))


def flat(value):
    """An array, or a list of arrays, as one vector, float64 or longdouble."""
    parts = value if isinstance(value, list) else [value]
    return np.concatenate([np.asarray(part, np.result_type(part, np.float64)).ravel() for part in parts])


def all_arrays(value):
    """Every array in nested tuples, lists and dicts."""
    if isinstance(value, Mapping):
        value = list(value.values())
    return [array for part in value for array in all_arrays(part)] if isinstance(value, tuple | list) else [value]


def shapes(value):
    """Shape of an array, or shapes of a list of arrays."""
    return [part.shape for part in value] if isinstance(value, list) else value.shape


def dtypes(value):
    """Dtype names of an array, or of a list of arrays."""
    return {part.dtype.name for part in (value if isinstance(value, list) else [value])}


def assert_close(case, values, expected, what="", limit=None):
    """Every quantity has the expected shape, the case's dtype, and an error within the limit."""
    limit = limit or case.limit
    assert set(values) == set(expected), what
    problems = []
    for name, value in values.items():
        assert shapes(value) == shapes(expected[name]), f"{what} {name}"
        assert dtypes(value) == {case.dtype}, f"{what} {name}"
        found = error(value, expected[name])
        if not found <= limit:  # so that NaN fails
            problems.append(f"{name}: {found / case.eps:.2f} eps")
    assert not problems, f"{case} {what}: errors above {limit / case.eps:.2f} eps: {', '.join(problems)}"


def assert_same_bits(values, others, what=""):
    """Two dicts of results hold the same bits."""
    assert list(values) == list(others), what
    for name, value in values.items():
        pairs = zip(value, others[name], strict=True) if isinstance(value, list) else [(value, others[name])]
        for one, other in pairs:
            np.testing.assert_array_equal(one, other, err_msg=f"{what} {name}", strict=True)


def check(case, device, schedule="stepwise", calls=1, checkpoints=False):
    """Inference and training of a case by a schedule, every quantity against what is expected; what was drawn against
    another Philox; later calls, which may replay what the first recorded: the same bits. With `checkpoints` training
    with few states kept, too."""
    problem = make_problem(case)
    layer = problem.layer(device, schedule=schedule)
    outputs, (values, drawn) = infer(layer, problem), train_and_draw(layer, problem)
    drops = problem.drops()
    assert len(drawn.masks) == len(problem.masks) and list(drawn.drops) == list(drops)
    for mask, expected in zip(drawn.masks, problem.masks, strict=True):
        np.testing.assert_array_equal(mask, expected, strict=True)
    for name, mask in drawn.drops.items():
        np.testing.assert_array_equal(mask, drops[name].astype(case.dtype), strict=True)
    drawn.drops = drops  # of the dtype that multiplies
    assert_close(case, values, problem.expected(drawn), "training")
    if checkpoints:
        check_checkpoints(case, device, schedule, (values, drawn))
    at_random = case.dropout or drops or drawn.noise
    if at_random:
        expected = problem.expected()
        assert_close(case, outputs, {name: expected[name] for name in outputs}, "inference")
    else:
        assert_same_bits(outputs, {name: values[name] for name in outputs}, "inference and training")
    if layer.engine.prepares_calls:
        with not_prepared():
            again = problem.layer(device, schedule=schedule)
            assert_same_bits(infer(again, problem), outputs, "inference, not prepared")
            assert_same_bits(train(again, problem)[0], values, "training, not prepared")
    for call in range(1, calls):
        assert_same_bits(infer(layer, problem), outputs, f"inference, call {call}")
        layer.training_calls = 0  # the same numbers
        assert_same_bits(train(layer, problem)[0], values, f"training, call {call}")
    if calls > 1 and at_random:
        values, drawn = train_and_draw(layer, problem)
        if drops:
            drawn.drops = problem.drops(call=1)
        assert_close(case, values, problem.expected(drawn), "training, with the next numbers")


def check_checkpoints(case, device, schedule="stepwise", without=None):
    """Training with few states kept, against what is expected; what is drawn, and on the CPU y and the final states,
    are what they are `without`, (values, drawn)."""
    problem = make_problem(case)
    values, drawn = without or train_and_draw(problem.layer(device, schedule=schedule), problem)
    layer = problem.layer(device, schedule=schedule, checkpoint_every=max(1, (case.T - 1) // 2))
    found, others = train_and_draw(layer, problem)
    for one, other in ((drawn.masks, others.masks), (drawn.noise, others.noise)):
        assert_same_bits(dict(enumerate(one)), dict(enumerate(other)), "drawn")
    drops = problem.drops()
    assert_same_bits(others.drops, {name: drop.astype(case.dtype) for name, drop in drops.items()}, "drawn")
    drawn.drops = drops
    assert_close(case, found, problem.expected(drawn), "with checkpoints")
    if device == "cpu" and case.T * case.B >= PACKED_FROM:  # fewer rows are multiplied otherwise
        outputs = [name for name in found if name.endswith("y")]
        assert_same_bits(*({name: one[name] for name in outputs} for one in (found, values)), "with checkpoints")
    return layer


def refusal(case, device, schedule):
    """The planner's reason where a schedule cannot run the case, else None."""
    try:
        case.layer(device, schedule=schedule).explain(
            np.shape(plain(make_problem(case).sequences(make_problem(case).x)))
        )
    except RuntimeError as reason:
        return str(reason)
    return None
