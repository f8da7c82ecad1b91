"""Cells that PyTorch lacks, in `numbarnn bench`: cells of the library and of files, written as equations.

Their peers are the built-in LSTM of the same sizes ("lstm"), and a loop of the same equations in eager PyTorch
("loop"). Errors are measured against the loop in float64. The limit is twice the error of the loop in the row's dtype,
or the floor of one step per stage of the cell. Over more than STEPS_COMPARED steps the limit is GROWTH times the loop's
error: in a chaotic cell chance decides how a rounding error grows.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

import numbarnn
from numbarnn.bench import accuracy, console
from numbarnn.bench.cases import PEERS_CELLS, Case, make_instance
from numbarnn.bench.cells import find_cell
from numbarnn.bench.lineup import LineUp
from numbarnn.bench.peers import peers
from numbarnn.bench.peers.contender import Contender, torch
from numbarnn.bench.peers.torch_peer import numpy_to_torch, torch_call, torch_synchronize, torch_to_numpy
from numbarnn.bench.shapes import TRAINING
from numbarnn.cells import Cell
from numbarnn.common import precision

STEPS_COMPARED, GROWTH = 16, 10


def why_no_loop(cell, train):
    """Return why a cell cannot be compared with a loop; None if it can."""
    if getattr(cell, "structure", None) is None:
        return "written by hand, not as equations"
    if train and (cell.noise or cell.drop_connect):
        return "draws random numbers in training, others in each call"
    return None


class NamedCell(NamedTuple):
    """A cell with the name that the command line has for it."""

    name: str
    cell: Cell

    def __str__(self):
        return self.name


def named_cells(text):
    """Parse cells separated by commas: names of PEERS_CELLS, and `NamedCell`s for others (an argparse type)."""
    names = dict.fromkeys(part.strip() for part in (",".join(PEERS_CELLS) if text == "all" else text).split(","))
    return [name if name in PEERS_CELLS else NamedCell(name, find_cell(name, PEERS_CELLS)) for name in names]


class CustomInstance:
    """Random arrays for a cell and a shape, C-contiguous, of a dtype.

    case: of an LSTM of the same sizes. parameters: name in the equations -> array. x (T, B, I), dy (T, B, H or P).
    states: one (L, B, H) per state, positive because a state may be a divisor.
    """

    def __init__(self, cell, shape, dtype, device):
        self.name, self.cell, self.shape = *cell, shape
        self.case = Case("lstm", shape.T, shape.B, shape.I, (shape.H,) * shape.L, gradients="y", dtype=dtype)
        random, numpy_dtype = np.random.default_rng(0), precision.numpy_dtype(dtype)
        try:
            layer = self.layer(device, "stepwise", precision.compute_dtype(dtype))
            if any(len(set(sizes)) > 1 for sizes in layer.stack.state_sizes):
                raise ValueError("its state sizes differ between layers, so this benchmark needs L = 1")
        except ValueError as error:
            raise console.WrongArguments(f"--cell {self.name} cannot have --shape {shape}: {error}") from error
        self.sizes = layer.stack.space.sizes
        self.parameters = {name: array.astype(numpy_dtype) for name, array in layer.state_dict(named=True).items()}
        widths = [sizes[0] for sizes in layer.stack.state_sizes]
        self.x = random.standard_normal((shape.T, shape.B, shape.I)).astype(numpy_dtype)
        self.dy = random.standard_normal((shape.T, shape.B, widths[0])).astype(numpy_dtype)
        self.states = [random.uniform(0.25, 1, (shape.L, shape.B, width)).astype(numpy_dtype) for width in widths]

    def layer(self, device, schedule, dtype=None):
        options = {"dtype": dtype or self.case.dtype, "device": device, "schedule": schedule, "seed": 0}
        return numbarnn.RNN(self.cell, self.shape.I, self.shape.H, self.shape.L, **options)

    def contender(self, what, device, schedule):
        """Return numbarnn's contender for a pass."""
        layer = self.layer(device, schedule)
        layer.load_state_dict(self.parameters)
        x, dy, *states = map(layer.engine.from_host, (self.x, self.dy, *self.states))

        def results(returned):
            y, final, *gradients = returned
            quantities = {"y": y} | self._named("final {}", final)
            for grads in gradients:
                quantities |= {"dx": grads.x} | self._named("d{}", grads.state) | dict(grads.named)
            return {name: peers.to_host(layer, value) for name, value in quantities.items()}

        call = peers.layer_call(layer, what, x, tuple(states) if len(states) > 1 else states[0], dy)
        wait, plan = peers.synchronize_of(layer), peers.plan_of(layer, x)
        return Contender(f"numbarnn {schedule}", call, results, wait, plan)

    def loop(self, train, device, dtype=None):
        """Return the contender of the loop in PyTorch. dtype: cast the arrays to it."""
        from numbarnn.torch import Recurrent

        def leaf(array):
            return numpy_to_torch(array.astype(dtype) if dtype else array, device).requires_grad_(train)

        x, states, dy = leaf(self.x), [leaf(state) for state in self.states], leaf(self.dy).detach()
        sizes, options = (self.shape.I, self.shape.H, self.shape.L), {"device": device, "dtype": x.dtype}
        module = Recurrent(self.cell, *sizes, schedule="loop", **options).eval().requires_grad_(train)
        for name, array in self.parameters.items():
            module.named[name] = numpy_to_torch(array, device)

        def results(returned):
            y, final = returned
            quantities = {"y": y} | self._named("final {}", final)
            if train:
                inputs = {"dx": x} | self._named("d{}", states)
                quantities |= {n: torch.zeros_like(one) if one.grad is None else one.grad for n, one in inputs.items()}
                quantities |= dict(module.named.grad)
            return {name: torch_to_numpy(value) for name, value in quantities.items()}

        backward = (lambda y, _: y.backward(dy)) if train else None
        state = tuple(states) if len(states) > 1 else states[0]
        call = torch_call(lambda: module(x, state), [x, *states, *module.parameters()], backward)
        return Contender("loop", call, results, torch_synchronize(device))

    def _named(self, form, states):
        """Return a name such as "dc" for each state, with its array. form: such as "d{}"."""
        states = states if isinstance(states, (list, tuple)) else (states,)
        return {form.format(name): state for name, state in zip(self.cell.states, states, strict=True)}

    def line_up(self, what, where):
        """Return the `LineUp` of a pass. Without a loop nothing is compared."""
        train, device, line = what == TRAINING, where.device, LineUp(self.case, {}, {}, limit_of=self._limit)
        if reason := why_no_loop(self.cell, train):
            line.left_out["loop"] = f"{reason}, so that results are not compared"
        else:
            loop, exact = self.loop(train, device), self.loop(train, device, "float64")
            line.truth, line.results = exact.results(exact.call()), loop.results(loop.call())
            line.rivals.append(loop)
        line.rivals.append(replace(peers.numbarnn_contender(make_instance(self.case), what, device), name="lstm"))
        return line

    def _limit(self, case, loop_error):
        """Return the largest error that passes. In float64 the floor doubles: the truth, a loop, errs as much."""
        floor = accuracy.floor(case) * (1 + len(self.cell.stages)) * (2 if case.dtype == "float64" else 1)
        return max(floor, (2 if self.shape.T <= STEPS_COMPARED else GROWTH) * loop_error)
