"""Define `Stack`: a stack of recurrent layers without parameters, which computes forward and backward for given
weights. Layers (`numbarnn.LSTM`, ...) pass their own weights, and `numbarnn.functional` passes its caller's."""

from __future__ import annotations

import threading
import weakref
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from numbarnn import cells, engines, schedules
from numbarnn.cells.definition import CELL_OPTIONS, with_options
from numbarnn.common.forks import freed_in_forks
from numbarnn.common.precision import is_half, known_dtype
from numbarnn.layers import checks
from numbarnn.layers.kernel_weights import KernelWeights
from numbarnn.layers.planned import LATER, NEW, PlannedCalls, Shape, Tape
from numbarnn.layers.prepared import NUMPY, PreparedCalls, PreparedForward, kind_of_call
from numbarnn.layers.sequences import EVERY_STEP
from numbarnn.layers.widened import Widened
from numbarnn.programs.backward import ALL, ResultGrads
from numbarnn.schedules import Problem
from numbarnn.schedules.problem import state_shapes
from numbarnn.weights.space import sizes_of_layers

if TYPE_CHECKING:
    from numbarnn.common.typing import AllowTF32, Bias, Sizes

PLANNED = 256  # `PlannedCalls` that a stack remembers
_lock = freed_in_forks(threading.RLock())  # guards the counters of training calls


class Stack:
    """A stack of recurrent layers on an engine, which computes forward and backward for the weights it is passed.

    The arguments are those of `numbarnn.LSTM`, but bias may also be "double", "none", "input" or "recurrent", and seed
    is a non-negative int below 2^64.

    Attributes:
        cell, cell_options: the `Cell`, and {name: value} of its options that are not the default; all are attributes.
        hidden_sizes, output_sizes: for each layer, H, and the width of its h (H, or P with projection).
        widths, output_widths: for each layer, the same sizes on engines. They are larger if another state has more
            units than h: engines give h and all states of a layer the width of the widest.
        equal_sizes, equal_widths: whether all layers have equal `hidden_sizes`, or equal `widths`.
        state_sizes, state_widths: [state, h first][layer] -> its width for callers, and on engines.
        has_narrow: whether these two differ, so that states and y must be cut or padded on their way.
    """

    def __init__(
        self, cell: str | cells.Cell, input_size: int, hidden_size: Sizes, num_layers: int | None = None,
        bias: Bias = True, dropout: float = 0.0, bidirectional: bool = False, dtype: str = "float32",
        device: Any = "auto", schedule: str = "auto", seed: int = 0, allow_tf32: AllowTF32 = False, *,
        proj_size: int = 0, input_mode: str = "linear", checkpoint_every: int | None = None, **cell_options: Any,
    ) -> None:  # fmt: skip
        arguments = {name: value for name, value in locals().items() if name not in ("self", "cell_options")}
        arguments |= cell_options
        self.cell = with_options(cell, cell_options)
        checked = cell_options | dict(self.cell.varied_by)
        self.cell_options = {name: value for name, value in checked.items() if value != CELL_OPTIONS[name][-1]}
        vars(self).update({name: checked.get(name, default) for name, (*_, default) in CELL_OPTIONS.items()})
        self.input_size = checks.positive_int(input_size, "input_size")
        self.hidden_sizes = checks.hidden_sizes(hidden_size, num_layers)
        self.num_layers = len(self.hidden_sizes)
        self.equal_sizes = len(set(self.hidden_sizes)) == 1
        self.bias_mode = checks.bias_mode(bias, self.cell)
        self.proj_size = checks.proj_size(proj_size, self.cell, self.hidden_sizes)
        checks.recurrent_matrix(self.cell, self.hidden_sizes, self.proj_size)
        self.output_sizes = tuple(self.proj_size or hidden for hidden in self.hidden_sizes)
        self.dropout = checks.probability(dropout, "dropout")
        self.directions = 2 if checks.flag(bidirectional, "bidirectional") else 1
        sizes = self.input_size, self.hidden_sizes, self.directions, self.proj_size
        layers = sizes_of_layers(self.cell.parameters, *sizes)
        self.widths, self.output_widths = (tuple(wide[letter] for _, wide in layers) for letter in "HP")
        checks.side_inputs(self.cell, self.input_size, self.hidden_sizes, input_mode)
        self.equal_widths = len(set(self.widths)) == 1
        of_gates = self.directions * self.cell.num_gates * self.hidden_sizes[0]
        self.input_mode = checks.input_mode(input_mode, self.input_size, self.hidden_sizes, of_gates)
        checks.larger_states(self.cell, self.hidden_sizes, self.widths, self.input_mode)
        self.dtype = checks.dtype_name(dtype)
        self.schedule = schedules.choose(schedule)
        self.engine = engines.get(device)
        checks.dtype_on(self.engine, self.dtype)
        self.seed = seed
        self.allow_tf32 = checks.allow_tf32(allow_tf32)
        self.checkpoint_every = checks.checkpoint_every(checkpoint_every)
        self._arguments = arguments | {"num_layers": None, "hidden_size": self.hidden_sizes, "dtype": self.dtype}
        self._derive()

    def _derive(self):
        """Set the attributes that follow from the arguments."""
        # The problem of calls, without the fields that `problem` sets.
        self._problem = Problem(
            engine=self.engine.name, profile=self.engine.profile, fuses_input=self.engine.fuses_input, cell=self.cell,
            dtype=self.dtype, input_size=self.input_size, hidden_sizes=self.widths, directions=self.directions,
            units=self.hidden_sizes if self.widths != self.hidden_sizes else (), projection=self.proj_size,
            bias=self.bias_mode, input_mode=self.input_mode, dropout=self.dropout, steps=0, batch=0, training=False,
            allow_tf32=self.allow_tf32 is True, splits_tf32=self.allow_tf32 == "3x",
            checkpoint_every=self.checkpoint_every or 0,
        )  # fmt: skip
        self.space = self._problem.space
        self.state_sizes = [self.output_sizes, *self._private_sizes()]
        self.state_widths = [self.output_widths, *[self.widths] * self.cell.num_private]
        self.has_narrow = self.state_sizes != self.state_widths
        self.calls = 0
        sizes = f"{self.cell.name!r}, {self.input_size}, {list(self.hidden_sizes)}"
        self.caller = f"{type(self).__name__}({sizes}, dtype={self.dtype!r}, schedule={self.schedule.name!r})"
        with self.engine.activate(), self.allocating_weights():
            self.kernel_weights = KernelWeights(self.engine, self._problem)
        self._trusted = set()  # problems whose persistent kernels were proved, if they have any
        self._calls = {}  # (`Shape`, whether it is training) -> `PlannedCalls`
        self.arrays = NUMPY  # the `CallersArrays` of all calls
        self.prepared = PreparedCalls() if self.engine.prepares_calls else None
        if self.prepared is not None:
            self.engine.keepers.add(self.prepared)
        self.insides = {}  # names of values -> the `Tangents` that record them
        self.tangents = None  # the `numbarnn.layers.tangents.Tangents`, once there has been a call for them
        self._widened = None
        if is_half(self.dtype) and not self.engine.has_halves:
            wide = Stack(**self._arguments | {"dtype": "float32", "device": self.engine.name})
            this = weakref.ref(self)  # which holds the other one
            wide._next_call, wide.caller = lambda: this()._next_call(), self.caller  # it draws the same numbers
            self._widened = Widened(wide, self.dtype)

    def __getstate__(self):  # the arguments that make it again, and what is drawn next
        return self._arguments_here() | {"calls": self.calls}

    def _arguments_here(self):
        """Return the arguments, with the device as a name."""
        engine = self.engine
        return self._arguments | {"device": f"cuda:{engine.ordinal}" if engine.name == "cuda" else engine.name}

    def __setstate__(self, state):
        Stack.__init__(self, **{name: value for name, value in state.items() if name != "calls"})
        self.calls = state["calls"]

    @contextmanager
    def allocating_weights(self):
        """Raise MemoryError with the sizes if allocating the weights fails within this context."""
        try:
            yield
        except (MemoryError, OverflowError, ValueError) as error:
            size = self.space.size
            raise MemoryError(
                f"hidden_size {list(self.hidden_sizes)} with input_size {self.input_size} makes {size:,} parameters, "
                f"{size * np.dtype(known_dtype(self.dtype)).itemsize:,} bytes in {self.dtype}, more than can be "
                f"allocated on {self.engine.name!r}: take smaller sizes"
            ) from error

    # ---------------------------------------------------------------- states: (L*D, B, H), or one (D, B, H) per layer
    def _private_sizes(self):
        """Return [state but h][layer] -> number of units."""
        sizes = [self.space.sizes[layer, 0] for layer in range(self.num_layers)]
        letters = self.cell.parameters.states or ("H",) * self.cell.num_private
        return [tuple(size_of.get(letter, letter) for size_of in sizes) for letter in letters]

    def shapes_of_states(self, batch):
        """Return [state, h first] -> its shape for callers: (L*D, B, H), or a list with one (D, B, H) per layer."""
        return [state_shapes(sizes, self.directions, batch) for sizes in self.state_sizes]

    def c_shapes(self, batch, count=1):
        """Return the shape of one cell state on engines, or of `count` of them side by side."""
        return state_shapes(tuple(count * width for width in self.widths), self.directions, batch)

    # ---------------------------------------------------------------- forward
    def problem(self, steps, batch, training, **fields):
        """Return the `Problem` of a call: the stack's, with these fields."""
        return replace(self._problem, steps=steps, batch=batch, training=training, **fields)

    def require_trust(self, problem):
        """Test the persistent kernels that run a problem, once per device; see `numbarnn.layers.self_check`."""
        if self.engine.identity is not None and problem not in self._trusted:
            from numbarnn.layers import self_check  # and with it what compiles for GPUs

            self_check.require(self, problem)
            self._trusted.add(problem)

    def twin(self, schedule, problem):
        """Make a stack that computes a problem of this one, or one of its segments, by another `Schedule`, for
        `self_check`."""
        changed = dict(
            input_size=problem.input_size, hidden_size=problem.units or problem.hidden_sizes,
            bidirectional=problem.directions == 2, dropout=problem.dropout, input_mode=problem.input_mode,
            num_layers=None, schedule=schedule.name, checkpoint_every=None,
        )  # fmt: skip
        twin = Stack(**self._arguments_here() | changed)
        twin.schedule, twin.caller = schedule, self.caller
        return twin

    def forward(self, x, hx, cx, weights, training, batch_major=False, sequences=EVERY_STEP):
        """Return y (T, B, D*H), hy, cy (None without cell states), the cell states of all steps (T, B, D*N*H) if
        requested, and the tape (None in inference).

        Args:
            x, hx, cx, weights: checked arrays: x (T, B, I), states as `arguments.states` returns them, the flat buffer.
            batch_major: x, y, and in backward dy and dx, are (B, T, ...).
            sequences: lengths, resets and the padding value, a `sequences.Sequences`.
        """
        if self._widened is not None:
            *results, tape = self._widened.forward(x, hx, cx, weights, training, batch_major, sequences)
            if training:
                tape.stack, tape.weights = self, weights
            return *results, tape
        steps, batch = x.shape[1::-1] if batch_major else x.shape[:2]
        ends = sequences.lengths is not None, sequences.resets is not None
        calls = self.planned(Shape(steps, batch, *ends, batch_major, sequences.every_state, hx is None), training)
        if training and self.prepared is None:
            calls.begun()  # a GPU may refuse the call: then no number of a training call is used up
        key = self.seed, self._next_call() if training else 0
        done = calls.run(weights, x, (hx, cx), sequences, key, training)
        if training:
            return *done.results, Tape(self, weights, calls, done.tape, x, prepared=done.prepared)
        if done.prepared is not None:
            done.prepared.give_back()
        return *done.results, None

    def planned(self, shape, training):
        """Return the `PlannedCalls` of a `Shape`, the same object each time."""
        calls = self._calls.get((shape, training))
        if calls is None:
            with self.engine.activate():
                calls = self._calls[shape, training] = PlannedCalls(self, shape, training, self.arrays)
            if len(self._calls) > PLANNED:
                self._calls.clear()
        return calls

    def infer_again(self, x, hx, cx, weights, batch_major):
        """Return [y, hy, cy] if an earlier call with arguments of the same form was prepared, else None. This skips the
        checks of arguments, which take as long as a small call."""
        kind = kind_of_call(x.shape, False, batch_major, hx is None, hx, cx, self.engine)
        prepared = self.prepared.find(kind, weights)
        if prepared is None:
            return None
        results = prepared.run(x, hx, cx) if prepared.takes(x, hx, cx) else None
        prepared.give_back()
        return results

    def prepared_step(self, weights, batch):
        """Return a `PreparedForward` of one step, for its `step`; None if the engine prepares no calls."""
        if self.prepared is None or self._widened is not None:
            return None
        calls = self.planned(Shape(1, batch), training=False)
        return PreparedForward(calls.call(weights), calls.forward_plan, self.zero_state(batch))

    def zero_state(self, batch):
        """Return zeros for h and c (None without cell states), with the widths that engines use."""
        private, zeros = self.cell.num_private, partial(self.engine.zeros, dtype=self.dtype)
        shapes = state_shapes(self.output_widths, self.directions, batch), self.c_shapes(batch, private)
        with self.engine.activate():
            h, c = ([zeros(one) for one in shape] if isinstance(shape, list) else zeros(shape) for shape in shapes)
            return h, c if private else None

    def _next_call(self):
        """Return the number of the next training call."""
        with _lock:  # no two threads may draw the same random numbers
            number = self.calls
            self.calls += 1
        return number

    # ---------------------------------------------------------------- backward
    def backward_data(self, tape, dy, dhy, dcy, dw=LATER, need=ALL, d_states=None):
        """Return dx (T, B, I), dhx and dcx (None without cell states); leave the parameters' gradients in `tape.dw`.

        Args:
            dy, dhy, dcy, d_states: checked gradients of forward's results; d_states: of the cell states of all steps.
            dw: a flat buffer to which the parameters' gradients are added; `NEW`, a new one; or `LATER`, which leaves
                them to `backward_weights`.
            need: a `Need`. Without its x, dx is None. With `again`, the tape stays valid.
        """
        if self._widened is not None:
            return self._widened.backward_data(tape, dy, dhy, dcy, dw, need, d_states)
        calls, prepared, later = tape.calls, tape.prepared, dw is LATER and need.weights
        if later and not calls.has_checkpoints:
            need, prepared = need._replace(weights=False), None
        dw = None if dw is LATER or dw is NEW else dw
        with calls.begun():
            tape.used = not need.again
            work = calls.go_back(tape.forward, ResultGrads(dy, dhy, dcy, d_states), need, dw, prepared)
        tape.backward = work if later else None
        if not (prepared is not None or later or need.again or calls.has_checkpoints):
            tape.forward.arrays = {}  # a tape that is used up takes no memory
        tape.dw = work.dw
        return work.results

    def backward_weights(self, tape, dw):
        """Add the parameters' gradients to the flat buffer dw, after a `backward_data` that left them out."""
        if self._widened is not None:
            self._widened.backward_weights(tape, dw)
        else:
            tape.calls.add_weights(tape.backward, dw)

    def check(self):
        """Wait for the device, and raise RuntimeError if a call on it failed; see `numbarnn.LSTM.check`."""
        with self.engine.activate():
            self.engine.check()
