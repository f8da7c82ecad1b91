"""Layers launch the kernels that are compiled for GPUs, and no others; a wavefront has the same bits in any order."""

from itertools import product

import numpy as np
import pytest

import numbarnn
from cases import BUILT_IN, CELLS, Case
from comparing import assert_same_bits
from numbarnn import schedules
from numbarnn.common.precision import DTYPES, numpy_dtype
from numbarnn.cuda.arguments import Arguments
from numbarnn.cuda.launch import Kernel
from numbarnn.kernels import catalog
from plan_orders import Shuffled
from problems import Problem, make_problem
from running import infer, train


def launching_calls():
    """Functions that call layers, so that together they launch every kernel there is but planned ones."""
    sizes = dict(T=2, B=2, hidden=(2, 3), directions=2, dropout=0.5, batch_first=True)
    for cell, dtype in product(BUILT_IN, DTYPES):
        yield problem_of(cell, dtype, I=1, **sizes)
    sequences = {"lengths": (1, 2), "resets": True}
    for dtype in DTYPES:
        for cell in CELLS:  # x of both layouts, each direction's columns, gates at a stride; packed
            yield problem_of(cell, dtype, input_mode="skip", **sizes, **sequences)
            yield problem_of(cell, dtype, T=3, B=2, input_mode="skip", lengths=(1, 3), packed=True)
        yield Problem(Case("gru_reset_before", T=2, B=2, dtype=dtype)), (train_in_parts, infer_in_parts)
        clip = {"cell_clip": (-1.0, 1.0)}  # the catalog's
        yield problem_of("lstm", dtype, T=2, B=2, **clip)
        for D, options in product((1, 2), ({}, sequences)):
            yield problem_of("lstm", dtype, T=2, B=2, directions=D, proj_size=1, **options)
        yield problem_of("lstm", dtype, T=2, B=2, proj_size=1, **clip)
        for cell in (catalog.SUMMING, catalog.DRAWING):
            yield OwnProblem(cell, dtype), (train_plainly, infer_plainly, spread_blocks)


class OwnProblem:
    """A layer of a cell of one's own, and its x."""

    def __init__(self, cell, dtype):
        self.cell, self.x = cell, np.ones((2, 2, 3), numpy_dtype(dtype))

    def layer(self, device, **options):
        return numbarnn.RNN(self.cell, 3, 3, dtype=self.x.dtype.name, device=device, seed=0, **options)


def train_plainly(layer, problem):
    y, _, tape = layer.forward(problem.x)
    layer.backward(tape, y)


def infer_plainly(layer, problem):
    layer(problem.x)


def spread_blocks(layer, problem):
    """As layers do whose R's matrices are blocks on the diagonal."""
    out, x = (np.zeros((6, columns), problem.x.dtype) for columns in (4, 2))
    layer.engine.spread_blocks(out, x, 1)


def problem_of(cell, dtype, **options):
    """A problem with options, and what runs it."""
    return Problem(Case(cell, dtype=dtype, **options)), (train, infer)


def in_parts(case):
    """Lengths of the case's sequences, in turn all and one."""
    return [case.T - (b % 2) * (case.T - 1) for b in range(case.B)]


def train_in_parts(layer, problem):
    tape = layer.forward(problem.x, lengths=in_parts(problem.case))[2]
    layer.backward(tape, problem.dy)


def infer_in_parts(layer, problem):
    layer(problem.x, lengths=in_parts(problem.case))


def test_layers_launch_only_what_is_compiled_for_gpus(monkeypatch):
    """Tests of kernels compile the catalog: nothing else is launched, and all of it is, with all its layouts."""
    launched, bind = set(), Kernel.bind

    def record(kernel, config, *arguments):
        launched.add((kernel.name, Arguments(kernel.name, arguments).signature))
        return bind(kernel, config, *arguments)

    monkeypatch.setattr(Kernel, "bind", record)
    for problem, calls in launching_calls():
        for call in calls:
            call(problem.layer("sim", schedule="stepwise"), problem)
    compiled = {shipped.signature for shipped in catalog.shipped_kernels()}
    assert launched <= compiled
    idle = {name for name, _ in compiled - launched}  # copies are for any strides, also those that no call has yet
    assert all(name.startswith("copy") for name in idle), idle
    assert {name for name, _ in launched} == {name for name, _ in compiled}


# ------------------------------------------------------------------------------------------------ orders of a wavefront
@pytest.mark.parametrize("cell, seed", [("lstm", 0), ("lstm", 1), ("gru", 2), ("rnn_tanh", 3)])
def test_every_order_that_needs_allow_gives_the_same_bits(cell, seed):
    case = Case(cell, T=9, B=2, hidden=(5, 3, 4)[: 2 + seed % 2], directions=1 + seed % 2, dropout=0.3)
    problem = make_problem(case)
    layer = problem.layer("sim", schedule="wavefront", seed=2)
    expected, (values, _) = infer(layer, problem), train(layer, problem)
    layer = problem.layer("sim", seed=2)
    layer.stack.schedule = Shuffled(schedules.choose("wavefront"), seed)
    assert_same_bits(infer(layer, problem), expected)
    assert_same_bits(train(layer, problem)[0], values)
