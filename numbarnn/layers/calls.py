"""Run the forward and backward programs of a stack on a caller's arrays."""

from typing import Any, NamedTuple

import numpy as np

from numbarnn.common.philox import WHOLE, Origin, dropout_masks, noise_words
from numbarnn.engines import Engine
from numbarnn.engines.runs import Run
from numbarnn.programs.backward import ALL, backward, backward_spec
from numbarnn.programs.forward import ForwardSpec, forward
from numbarnn.programs.recurrent_weights import drop_connect_masks
from numbarnn.programs.states import form_of_state
from numbarnn.schedules.problem import Problem


class Call(NamedTuple):
    """The settings of a forward call, besides the caller's arrays.

    Attributes:
        weights: the `kernel_weights.ReadWeights`. seed, number: the key of its random numbers: seed and number of the
            training call.
        caller: the layer's description, for errors that appear later.
        keeps: whether to copy the weights and x, so that the caller may change them before backward.
        origin: position of these steps in the call whose random numbers they draw. from_zero: see `ForwardSpec`.
        step_mask: of a segment, (1, T + 2, B), or None. part: (whole, first_layer, direction), see `ForwardSpec`.
    """

    engine: Engine
    problem: Problem
    weights: Any
    seed: int = 0
    number: int = 0
    caller: str = ""
    keeps: bool = False
    from_zero: bool = False
    origin: Origin = WHOLE
    step_mask: Any = None
    part: tuple = (None, 0, 0)

    def built(self, plan, hx=None, cx=None, fill=0.0):
        """Return the `programs.forward.Forward` of this call, the builder with its views and program, for a plan."""
        return forward(
            ForwardSpec(
                self.problem, plan, form_of_state(hx), form_of_state(cx), str(float(fill)), self.caller, self.from_zero,
                *self.part,
            )
        )  # fmt: skip

    def drawn(self):
        """Yield (name of a buffer, NumPy array) of the numbers from which kernels draw random numbers."""
        p, cell = self.problem, self.problem.cell
        if p.dropping:
            rows = self.origin.time * p.batch * p.directions
            firsts = [rows * width for width in p.output_sizes[:-1]]
            yield "masks", dropout_masks(p.dropout, self.seed, self.number, firsts)[1]
        if p.training and cell.noise:
            yield "noise", noise_words(self.seed, p.layers * p.directions, self.number, self.origin)
        if p.training and cell.num_ah and any(cell.drop_connect):
            words = drop_connect_masks(p, self.seed, self.number, self.origin.place)
            yield "drop_words", np.array(words, np.uint64)


class ForwardCall:
    """A forward call; after training, the tape that a `BackwardCall` reads.

    Args:
        call: the `Call`. built: its `programs.forward.Forward`. read: the `ReadWeights` that it used.
        arrays: name of a buffer -> array that backward reads: the reserve, x, weights, the keys of random numbers.
    """

    def __init__(self, call, built, read, arrays):
        self.call, self.built, self.read, self.arrays = call, built, read, arrays
        self.engine, self.problem = call.engine, call.problem

    reserve = property(lambda self: self.arrays["reserve"], doc="What backward reads besides x and the weights.")

    @classmethod
    def of_reserve(cls, call, plan, x, reserve):
        """Rebuild the tape of an earlier forward call from its reserve, for backward only. x may be None if backward
        computes no gradients of parameters, or if the reserve has a copy of x (`Problem.copies_x`)."""
        built = call.built(plan)
        run = Run(call.engine, built.program, _allocator(call), call.weights.arrays() | {"reserve": reserve})
        if not call.problem.copies_x:
            run.give("x", x, own=call.engine.records_jobs)
        for name, array in call.drawn():
            run.give_from_host(name, array)
        return cls(call, built, call.weights, run.arrays)


def _allocator(call, *kind):
    return call.engine.allocate(call.weights.flat, call.problem, *kind)


def run_forward(call, plan, x, hx=None, cx=None, lengths=None, resets=None, fill=0.0):
    """Run a forward call and return (y, hy, cy[, cell states of all steps]) and the `ForwardCall`. x, hx, cx: the
    caller's: x (T, B, I) or (B, T, I); states as in `problem.state_shapes`, None for zero. lengths, resets: (B,) int32
    and (T, B) uint8, of NumPy or the engine, or None. fill: y beyond a length."""
    engine, problem, read, allocate = call.engine, call.problem, call.weights, _allocator(call)
    built = call.built(plan, hx, cx, fill)
    run = Run(engine, built.program, allocate)
    if call.keeps:
        run.give("weights", read.parameters, own=True)
        read = read.of_copy(run.arrays.pop("weights"), allocate)
    run.arrays |= read.arrays()
    copies = call.keeps or (engine.records_jobs and problem.training)
    run.give("x", x, own=copies and not problem.copies_x and problem.input_mode == "linear")
    run.give("hx", hx)
    run.give("cx", cx)
    for name, array in (("lengths", lengths), ("resets", resets)):
        if isinstance(array, np.ndarray) and engine.array_module is not np:
            run.give_from_host(name, array)
        elif array is not None:
            run.give(name, array)
    if call.step_mask is not None:
        run.give("step_mask_given", call.step_mask)
    for name, array in call.drawn():
        run.give_from_host(name, array)
    read.derive()
    run.execute()
    results = []
    for number, view in enumerate(built.results):
        if not call.keeps or number in (1, 2) or built.rewrites:  # hy and cy are not read again
            results.append(run.result(view))
        elif engine.records_jobs:  # backward reads h, and the states of each step, again
            results.append(engine.settled(allocate, f"result_{number}", run.at(view), own=True))
        else:
            results.append(run.at(view).copy())
    arrays = {name: run.arrays[name] for name in (*built.given, "reserve") if name in run.arrays}
    if problem.copies_x:
        del arrays["x"]
    return results, ForwardCall(call, built, read, arrays if problem.training else {})


class BackwardCall:
    """A backward call, which runs when it is made. Its attributes are results, (dx or None, dhx, dcx), and dw.

    Args:
        tape: the `ForwardCall`. Backward overwrites what the cell saved, unless `need.again`.
        plan, need: of the pass. gradients: the `ResultGrads`. d_derived: as dw, for derived weights.
        dw: a buffer to which the parameters' gradients are added; None: a new one, if the plan computes them.
    """

    def __init__(self, tape, plan, gradients, dw=None, need=ALL, d_derived=None):
        self.tape, self.need, self._gradients = tape, need, gradients
        run, built = self._run(plan, dw, d_derived, tape.arrays, after=False)
        self.results = tuple(run.result(result) for result in built.results)
        self._left = {name: run.arrays[name] for name in run.program.made if name in run.program.kept}

    def add_weights(self, plan, dw):
        """Add the parameters' gradients to dw, after a call without them; plan: for these alone."""
        self._run(plan, dw, None, self.tape.arrays | self._left, after=True)

    def _run(self, plan, dw, d_derived, arrays, after):
        tape, gradients, engine = self.tape, self._gradients, self.tape.engine
        built = backward(backward_spec(tape.built.spec, plan, self.need, gradients, dw is not None, after))
        allocate = _allocator(tape.call, "backward")
        run = Run(engine, built.program, allocate, arrays)
        for name, state in zip(("dy", "dhy", "dcy", "d_states"), gradients, strict=True):
            run.give(name, state)
        if dw is not None:
            run.arrays["dw"] = dw
        pulls = built.d_derived is not None and built.has_weights and d_derived is None
        if pulls:
            d_derived = allocate("d_derived", built.d_derived.shape, built.d_derived.dtype)
            engine.zero(d_derived)
        if d_derived is not None:
            run.arrays["d_derived"] = d_derived
        tape.read.derive()  # again: another call may have derived others there
        run.execute()
        self.dw = run.arrays.get("dw")
        if pulls:
            if self.dw is None:  # kernels read no parameter as it is
                self.dw = allocate("dw", built.dw.shape, built.dw.dtype)
            pairs = zip(self.dw, d_derived, strict=True) if self.need.by_sequence else [(self.dw, d_derived)]
            for part, of_derived in pairs:
                tape.read.pull_back(part, of_derived, dw is not None)
        return run, built
