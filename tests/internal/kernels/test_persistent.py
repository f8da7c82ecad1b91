"""Persistent kernels on a GPU: equal to stepwise, the same bits in every run and in graphs; refusals with numbers.

Under many orders of their threads they run in the simulator (simulated/test_persistent_simulated.py); every tile is
compiled by test_kernels.py; the planner's own tests are test_planner.py.
"""

import numpy as np
import pytest

import minimal_rnn
from cases import Case
from comparing import assert_close, assert_same_bits
from grouped_tiles import CHEAP, MIXED_TILES, TWO_LAYERS
from numbarnn import cells, engines
from numbarnn.engines.gpu import profiles
from numbarnn.kernels import error_flag
from numbarnn.schedules import Problem, choose
from numbarnn.schedules.persistent import planner
from numbarnn.schedules.persistent import schedule as schedule
from problems import make_problem
from running import infer, train


# -------------------------------------------------------------------------------------------------- without a device
@pytest.mark.parametrize("backward", (False, True), ids=("forward", "backward"))
@pytest.mark.parametrize("layer, direction, step", [(0, 0, 0), (3, 1, 1023), (63, 0, (1 << 31) - 1)])
def test_trouble_says_where(layer, direction, step, backward):
    """A kernel's one word: layer, direction, pass and step."""
    code = error_flag.timeout_of(layer, direction, backward) + step
    assert 0 < code < error_flag.CALLER
    text = error_flag.explain(code, "LSTM(4, 5)")
    other = error_flag.explain(code + error_flag.OTHER_LAYER, "LSTM(4, 5)")
    assert text.startswith("a call of LSTM(4, 5) failed: ") and "other blocks of the layer" in text
    assert ("the gradient from layer" if backward else "the output of layer") in other
    assert f"layer {layer}, direction {direction}," in text and f"at step {step} of the " in text
    assert f"{'backward' if backward else 'forward'} pass" in text and "schedule='stepwise'" in text


REFUSED_DTYPES = [
    ("float64", "h200", "float32, float16 and bfloat16, not in float64"),
    ("float16", "t4", r"float16 by tensor cores of compute capability 8.0 or newer, and NVIDIA T4 has 7\.5"),
    ("bfloat16", "t4", "bfloat16 by tensor cores"),
]


@pytest.mark.parametrize("dtype, profile, words", REFUSED_DTYPES)
@pytest.mark.parametrize("backward", (False, True), ids=("forward", "backward"))
def test_refuses_what_its_kernels_do_not_compute(backward, dtype, profile, words):
    """`auto` takes another schedule then."""
    problem = Problem("cuda", cells.get("lstm"), dtype, 8, (8,), 1, 10, 16, True, profile=profiles.get(profile))
    with pytest.raises(planner.DoesNotFit, match=words + ".*: use schedule='wavefront' or 'stepwise'"):
        schedule.SCHEDULE.launches(problem, backward)
    assert choose("auto").pick(problem)[0].name == "stepwise"


# --------------------------------------------------------------------------------------------------------- on a GPU
@pytest.fixture
def engine():
    return engines.get("cuda")


LARGE = [
    Case("lstm", T=50, B=16, I=768, hidden=(768,)),
    Case("lstm", T=25, B=64, I=512, hidden=(512,) * 4),
    Case("gru", T=25, B=64, I=512, hidden=(512,) * 4, dropout=0.3),
    Case("lstm", T=50, B=16, I=768, hidden=(768,), dtype="float16"),
    Case("lstm", T=25, B=64, I=512, hidden=(512,) * 4, dropout=0.3, dtype="float16"),
    Case("gru", T=25, B=64, I=512, hidden=(512,) * 4, dtype="bfloat16"),
    Case("lstm", T=8, B=128, I=1024, hidden=(1024,) * 3, dtype="float16"),
    Case("lstm", T=25, B=64, I=512, hidden=(512,) * 2, proj_size=256, dropout=0.3, dtype="float16"),
]
ODD = [
    Case("lstm", T=9, B=5, hidden=(33, 70, 20), directions=2, dropout=0.4),
    Case("gru", T=9, B=17, hidden=(67,), bias=False),
    Case("rnn_tanh", T=9, B=1, hidden=(257, 130), directions=2),
    Case("lstm", T=1, B=33, hidden=(96, 100), state=False),
    Case("gru", T=9, B=3, hidden=(40, 24), directions=2, dropout=0.4),
    Case("lstm", T=9, B=17, hidden=(33, 70), directions=2, dropout=0.4, dtype="float16"),
    Case("gru", T=9, B=2, hidden=(130, 67), dtype="bfloat16"),
    Case("rnn_tanh", T=5, B=9, hidden=(64, 72), directions=2, dtype="bfloat16"),
    Case("lstm", T=5, B=9, hidden=(64, 32), heads=4, directions=2, dropout=0.4, dtype="float16"),
    Case("rnn_tanh", T=5, B=3, hidden=(96,), heads=3),
    Case("lstm", T=5, B=9, hidden=(64, 72), proj_size=40, directions=2, dropout=0.4, dtype="float16"),
]


@pytest.mark.gpu
@pytest.mark.parametrize("case", [*[pytest.param(case, marks=pytest.mark.real_gpu) for case in LARGE], *ODD], ids=str)
def test_equals_stepwise(case):
    """Every quantity, and the same bits in two calls. Between schedules sums are added in other orders."""
    problem = make_problem(case)
    layers = [problem.layer("cuda", schedule=name, seed=3) for name in ("persistent", "persistent", "stepwise")]
    outputs, again, expected = [infer(layer, problem) for layer in layers]
    assert_same_bits(again, outputs)
    assert_close(case, outputs, expected, "inference")
    (values, masks), (again, _), (expected, expected_masks) = [train(layer, problem) for layer in layers]
    assert_same_bits(again, values)
    for mask, other in zip(masks or (), expected_masks or (), strict=True):
        np.testing.assert_array_equal(mask, other, strict=True)
    assert_close(case, values, expected, "training")


@pytest.mark.gpu
@pytest.mark.parametrize("tile", [*TWO_LAYERS, *CHEAP, *MIXED_TILES], ids=str)
def test_several_groups_of_chunks_agree_with_reference(engine, monkeypatch, tile):
    """Forward and backward, with tiles as those of H = 512 and 768, each kernel's product in three groups or more."""
    tile.choose(monkeypatch, "cuda", engine.profile)
    problem = make_problem(tile.case)
    values, _ = train(problem.layer("cuda", schedule="persistent"), problem)
    assert_close(tile.case, values, problem.expected(), "training", tile.limit)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ("float32", "float16"))
def test_x_that_begins_anywhere(engine, dtype):
    """Not at a multiple of 16 bytes: a first layer that multiplies it itself loads it number by number."""
    problem = make_problem(Case("lstm", T=1, B=1, I=16, hidden=(24,), dtype=dtype))
    layer = problem.layer("cuda", schedule="persistent", seed=3)
    x = engine.empty(problem.x.size + 1, dtype)[1:].reshape(problem.x.shape)
    x[...] = engine.from_host(problem.x)
    assert engine.address(x) % 16 != 0
    expected, found = layer(engine.from_host(problem.x))[0], layer(x)[0]
    np.testing.assert_array_equal(engine.to_host(found), engine.to_host(expected))


@pytest.mark.gpu
@pytest.mark.parametrize("T, B, H", [(3, 11, 8), (4, 3, 7)])
def test_the_kernel_that_is_there_to_be_read_agrees_with_float64(T, B, H):
    h, ax, R, right = minimal_rnn.problem_of(T, B, H)
    minimal_rnn.run(h, ax, R)
    np.testing.assert_allclose(h[1:], right, rtol=0, atol=1e-5)
