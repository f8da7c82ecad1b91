"""Cells whose kernels read what is formed of parameters, against loops in float64 and finite differences."""

import numpy as np
import pytest
import torch

import numbarnn as nr
import numbarnn.torch as nrt
from formed_cells import CELLS
from formed_loops import INPUTS, H, assert_close, computed, expected, full_names, layer_of, problem

by_cell = pytest.mark.parametrize("name", CELLS)


@by_cell
@pytest.mark.parametrize("options", ({}, {"num_layers": 2, "bidirectional": True}), ids=("one", "stack"))
def test_agrees_with_a_loop(name, options):
    """Small calls, bound; and one that is not bound as it is given lengths that are all T."""
    if options and CELLS[name][2]:
        options = {"num_layers": 3}  # else the second layer's x is wider than its h
    layer = layer_of(name, **options)
    given = problem(name, layer)
    assert_close(computed(layer, given), expected(name, layer, given), 1e-12)
    layer.weights += 0.01  # what is formed is formed anew
    assert_close(computed(layer, given), expected(name, layer, given), 1e-12)


@by_cell
def test_gradients_are_differences(name):
    cell, _, same_size = CELLS[name]
    options = {"proj_size": 3} if cell.projected else {}
    nr.gradcheck(cell, H if same_size else INPUTS, H, **options)


@by_cell
@pytest.mark.parametrize("schedule", ("stepwise", "wavefront"))
def test_schedules_on_large_calls_in_float32(name, schedule):
    """Beyond what is bound, in several threads; tolerance: float32, of sums of a few hundred."""
    layer = layer_of(name, "float32", num_layers=2, schedule=schedule)
    given = problem(name, layer, batch=70, steps=20)
    assert_close(computed(layer, given), expected(name, layer, given), 2e-5)


@by_cell
def test_halves(name):
    """On the CPU they are computed in float32 and rounded once."""
    layer = layer_of(name, "float16")
    given = tuple([one.astype("float16").astype("float64") for one in part] if isinstance(part, list)
                  else part.astype("float16").astype("float64") for part in problem(name, layer))  # fmt: skip
    assert_close(computed(layer, given), expected(name, layer, given), 2e-3)


@by_cell
def test_gradients_are_added(name):
    layer = layer_of(name)
    given = problem(name, layer)
    once, dw = expected(name, layer, given), np.ones_like(layer.weights)
    twice = computed(layer, given, dw=dw)
    assert_close(twice, once | {key: value + 1 for key, value in once.items() if key in full_names(layer)}, 1e-12)


@by_cell
def test_in_pytorch(name):
    """The module's parameters as a flat buffer, and from elsewhere; autograd through them."""
    cell, _, same_size = CELLS[name]
    layer, options = layer_of(name), {"proj_size": 3} if cell.projected else {}
    module = nrt.Recurrent(cell, H if same_size else INPUTS, H, dtype=torch.float64, **options)
    module.load_state_dict({key: torch.tensor(value) for key, value in layer.state_dict().items()})
    given = problem(name, layer)
    wanted = expected(name, layer, given)
    x, states, dy, d_states = given
    for way in ("flat", "elsewhere"):
        own = {key: value.detach().clone().requires_grad_() for key, value in module.named_parameters()}
        inputs = torch.tensor(x), [torch.tensor(state) for state in states]
        arguments = inputs[0], tuple(inputs[1]) if len(states) > 1 else inputs[1][0]
        module.zero_grad()
        if way == "flat":
            y, finals = module(*arguments)
            own = dict(module.named_parameters())
        else:
            y, finals = torch.func.functional_call(module, own, arguments)
        finals = finals if isinstance(finals, tuple) else (finals,)
        loss = (y * torch.tensor(dy)).sum()
        loss = loss + sum((a * torch.tensor(b)).sum() for a, b in zip(finals, d_states, strict=True))
        loss.backward()
        flat = {part.name: own[part.name].grad.reshape(-1) for part in layer.stack.space.parameters}
        found = {
            key: flat[part.name][where.start - part.offset : where.stop - part.offset].reshape(shape).numpy()
            for blocks in layer.stack.space.blocks.values()
            for key, (part, where, shape) in ((f"l0.{name}", block) for name, block in blocks.items())
        }
        assert_close({"y": y.detach().numpy()} | found, {key: wanted[key] for key in ("y", *found)}, 1e-12)
