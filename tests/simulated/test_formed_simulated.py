"""Cells whose kernels read what is formed of parameters, in the simulator: by every schedule that can run them."""

import pytest

pytest.importorskip("torch")

import formed_loops
from formed_cells import CELLS
from formed_loops import assert_close, computed, expected, layer_of, problem
from grouped_tiles import tiles_made

MOST_PRODUCTS = 2  # per step: a block has so many warps in the simulator
PERSISTENT = {
    name
    for name, (cell, *_) in CELLS.items()
    if not cell.projected and cell.num_products + (cell.num_recurrent > 0) <= MOST_PRODUCTS
}
POINTS = [(name, "stepwise") for name in CELLS] + [(name, "persistent") for name in sorted(PERSISTENT)]
POINTS += [(name, "wavefront") for name in ("learned_diffusion", "sak_lstm")]


@pytest.mark.parametrize("name, schedule", POINTS)
def test_agrees_with_a_loop(name, schedule):
    """float64, but for the persistent schedule, which has none: float32, of sums of a dozen."""
    dtype = "float32" if schedule == "persistent" else "float64"
    layer = layer_of(name, dtype, "sim", schedule=schedule)
    given = problem(name, layer, batch=2, steps=2)
    assert_close(computed(layer, given), expected(name, layer, given), 1e-5 if dtype == "float32" else 1e-12)
    layer.weights += 0.01
    assert_close(computed(layer, given), expected(name, layer, given), 1e-5 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize(
    "name, schedule",
    (("tgru_of_wide_x", "stepwise"), ("traced_activity", "persistent"), ("learned_diffusion", "persistent")),
)
def test_in_segments(name, schedule):
    """Of each layer and direction: kernels know what is formed by its place behind the parameters of all of them."""
    layer = layer_of(name, "float32", "sim", num_layers=2, bidirectional=True, schedule=schedule, checkpoint_every=1)
    given = problem(name, layer, batch=1, steps=2)
    assert_close(computed(layer, given), expected(name, layer, given), 1e-5)


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_halves(dtype):
    """Formed in float32, and rounded once."""
    layer = layer_of("learned_diffusion", dtype, "sim", num_layers=2)
    given = problem("learned_diffusion", layer, batch=2, steps=2)
    assert_close(
        computed(layer, given), expected("learned_diffusion", layer, given), 5e-3 if dtype == "float16" else 4e-2
    )


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float16", 5e-3)])
def test_weights_that_begin_between_multiples_of_16_bytes(monkeypatch, dtype, tolerance):
    """After one number, gamma, stands what is formed for h: rows that could be loaded 16 bytes at once but for that."""
    monkeypatch.setattr(formed_loops, "H", 16)
    tiles = tiles_made(monkeypatch)
    layer = layer_of("learned_diffusion", dtype, "sim", schedule="persistent")
    given = problem("learned_diffusion", layer, batch=2, steps=2)
    assert_close(computed(layer, given), expected("learned_diffusion", layer, given), tolerance)
    assert {tile.backward for tile in tiles} == {False, True}
    assert all(tile.aligned and not tile.loads_pieces for tile in tiles)
