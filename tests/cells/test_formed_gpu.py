"""Cells whose kernels read what is formed of parameters, on a GPU, call after call: forming is no part of the graphs
that are replayed.
"""

import pytest

pytest.importorskip("torch")

from formed_cells import CELLS
from formed_loops import assert_close, computed, expected, layer_of, problem

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ("float32", "float64"))
@pytest.mark.parametrize("schedule", ("stepwise", "wavefront", "auto"))
@pytest.mark.parametrize("name", CELLS)
def test_agrees_with_a_loop_when_weights_change(name, schedule, dtype):
    layer = layer_of(name, dtype, "cuda", schedule=schedule)
    given = problem(name, layer)
    for _ in range(4):  # seen, recorded, replayed
        tolerance = 1e-5 if dtype == "float32" else 1e-12
        assert_close(computed(layer, given), expected(name, layer, given), tolerance)
        layer.weights += 0.01


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize(
    "name", ("learned_diffusion", "janet", "small_context", "sak_lstm", "tgru_of_wide_x", "large_memory")
)
def test_halves(name, dtype):
    """Formed in float32, and rounded once."""
    layer = layer_of(name, dtype, "cuda", num_layers=2)
    given = problem(name, layer)
    assert_close(computed(layer, given), expected(name, layer, given), 5e-3 if dtype == "float16" else 4e-2)
