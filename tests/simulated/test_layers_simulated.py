"""Layers made of the real kernels, in the simulator: every quantity against the float64 reference."""

from itertools import cycle, product

import numpy as np
import pytest

import numbarnn
import option_cases
from half_cases import HalfCase
from helpers import CELLS, Case, Problem, assert_close, assert_same_bits, check_layer, infer, make_problem, train
from numbarnn import engines
from numbarnn.common.precision import DTYPES, HALVES, numpy_dtype
from numbarnn.cuda.arguments import Arguments
from numbarnn.cuda.launch import Kernel
from numbarnn.kernels import catalog
from numbarnn.kernels.arrays import fingerprint, samples
from option_cases import OptionCase, OptionProblem

# Every T, B and H, with directions, bias and dtype taking turns ...
SIZES = tuple(product((1, 2, 7), (1, 3), (1, 5, 33)))
TURNS = tuple(product((1, 2), (True, False), ("float32", "float64")))
# ... and several layers, equal and unequal, and each option. What is long is not also deep.
OPTIONS = (
    dict(T=2, B=1, hidden=(33, 33), directions=2),
    dict(T=7, B=3, hidden=(5, 1)),
    dict(T=2, B=3, hidden=(5, 33, 1), directions=2, bias=False),
    dict(T=1, B=3, hidden=(5, 5, 5), directions=2),
    dict(T=2, B=3, hidden=(5, 3), dropout=0.4, directions=2),
    dict(T=2, B=3, hidden=(33,), batch_first=True, state=False, given=("dy",)),
    dict(T=2, B=1, hidden=(1, 1, 1), bias=False, given=("dhy",)),
)


KINDS = [(Case, "float32"), (Case, "float64"), *((HalfCase, dtype) for dtype in HALVES)]


def cases():
    """Each cell with each of the sizes and options; the next cell with other turns."""
    for turn, cell in enumerate(CELLS):
        for number, (T, B, H) in enumerate(SIZES):
            D, bias, dtype = TURNS[(3 * number + turn) % len(TURNS)]
            yield Case(cell, T=T, B=B, hidden=(H,), directions=D, bias=bias, dtype=dtype)
        dtypes = cycle(("float32", "float64")[:: 1 if turn % 2 else -1])
        for options, dtype in zip(OPTIONS, dtypes, strict=False):
            yield Case(cell, **options, dtype=dtype)


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_agrees_with_reference(case):
    check_layer(case, "sim")


@pytest.mark.parametrize("cell", CELLS)
def test_agrees_with_the_cpu_engine(cell):
    """The same problem on both engines: the same dropout masks bit for bit, results within rounding."""
    case = Case(cell, T=3, B=2, hidden=(5, 6, 3), dropout=0.5, directions=2)
    problem = make_problem(case)
    sim, sim_masks = train(problem.layer("sim", seed=11), problem)
    cpu, cpu_masks = train(problem.layer("cpu", seed=11), problem)
    for one, other in zip(sim_masks, cpu_masks, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
    assert_close(case, sim, cpu, "sim against cpu")


@pytest.mark.parametrize("cell", ("lstm", "gru"))
def test_inference_equals_training_bit_for_bit(cell):
    problem = make_problem(Case(cell, T=3, hidden=(5, 3)))
    outputs = infer(problem.layer("sim"), problem)
    values, _ = train(problem.layer("sim"), problem)
    assert_same_bits(outputs, {name: values[name] for name in outputs})


def test_weight_gradients_accumulate_into_dw():
    case = Case("gru", T=2, hidden=(5,))
    problem = make_problem(case)
    layer = problem.layer("sim")
    once = layer.backward(layer.forward(problem.x)[2], problem.dy)
    single = {name: view.copy() for name, view in once.params.items()}
    twice = layer.backward(layer.forward(problem.x)[2], problem.dy, dw=once.weights)
    assert_close(case, twice.params, {name: 2 * value for name, value in single.items()})


def launching_calls():
    """Functions that call layers, so that together they launch every kernel there is but planned ones."""
    sizes = dict(T=2, B=2, hidden=(2, 3), directions=2, dropout=0.5, batch_first=True)
    for cell, (kind, dtype) in product((*CELLS, "gru_reset_before"), KINDS):
        yield Problem(kind(cell, I=1, **sizes, dtype=dtype)), (train, infer)
    sequences = {"lengths": (1, 2), "resets": True}
    for dtype in DTYPES:
        for cell in CELLS:  # x of both layouts, each direction's columns, gates at a stride; packed
            yield option_problem(cell, dtype, input_mode="skip", **sizes, **sequences)
            yield option_problem(cell, dtype, T=3, B=2, input_mode="skip", lengths=(1, 3), packed=True)
        yield Problem(Case("gru_reset_before", T=2, B=2, dtype=dtype)), (train_in_parts, infer_in_parts)
        clip = {"cell_clip": (-1.0, 1.0)}  # the catalog's
        yield option_problem("lstm", dtype, T=2, B=2, **clip)
        for D, options in product((1, 2), ({}, sequences)):
            yield option_problem("lstm", dtype, T=2, B=2, directions=D, proj_size=1, **options)
        yield option_problem("lstm", dtype, T=2, B=2, proj_size=1, **clip)
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


def option_problem(cell, dtype, **options):
    """A problem with options, and what runs it."""
    return OptionProblem(OptionCase(cell, dtype=dtype, **options)), (option_cases.train, option_cases.infer)


def in_parts(case):
    """Lengths of the case's sequences, in turn all and one."""
    return [case.T - (b % 2) * (case.T - 1) for b in range(case.B)]


def train_in_parts(layer, problem):
    tape = layer.forward(problem.x, lengths=in_parts(problem.case))[2]
    layer.backward(tape, problem.dy)


def infer_in_parts(layer, problem):
    layer(problem.x, lengths=in_parts(problem.case))


def launch_what_gpus_need_to_notice_failures():
    """Calls in the simulator fail where they are made, and watch what backward reads again on the host."""
    engine, word, places = engines.get("sim"), np.zeros(1, np.int64), samples.places([(0, 6, 1)])
    seen = np.zeros((fingerprint.MOST_ARRAYS, fingerprint.BLOCKS), np.uint64)
    for dtype in ("float16", "float32", "float64"):
        arrays = np.ones(6, dtype), np.ones((2, 3), dtype)
        engine.spoil(arrays, word, "nobody")
        fingerprint.note(seen, arrays, (places, places), word)
        fingerprint.compare(seen, arrays, (places, places), word)


def test_layers_launch_only_what_is_compiled_for_gpus(monkeypatch):
    """The catalog is compiled by tests/kernels: nothing else is launched, and all of it is, with all its layouts."""
    launched, bind = set(), Kernel.bind

    def record(kernel, config, *arguments):
        launched.add((kernel.name, Arguments(kernel.name, arguments).signature))
        return bind(kernel, config, *arguments)

    monkeypatch.setattr(Kernel, "bind", record)
    for problem, calls in launching_calls():
        for call in calls:
            call(problem.layer("sim", schedule="stepwise"), problem)
    launch_what_gpus_need_to_notice_failures()
    compiled = {shipped.signature for shipped in catalog.shipped_kernels()}
    assert launched <= compiled
    idle = {name for name, _ in compiled - launched}  # copies are for any strides, also those that no call has yet
    assert all(name.startswith("copy") for name in idle), idle
    assert {name for name, _ in launched} == {name for name, _ in compiled}
