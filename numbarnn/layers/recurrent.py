"""Define `Recurrent`, the base of LSTM, GRU and RNN: its parameters, forward and backward calls, and state dict."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from numbarnn.layers import arguments, array_checks, checks, drawn, private, sequences
from numbarnn.layers.costs import lines_about
from numbarnn.layers.named import Named
from numbarnn.layers.parameters import Gradients, Parameters, initial_weights
from numbarnn.layers.planned import NEW
from numbarnn.layers.sequences import NO_PADDING_VALUE
from numbarnn.layers.stack import Stack
from numbarnn.layers.stepper import Stepper
from numbarnn.programs.backward import Need

if TYPE_CHECKING:
    from numbarnn.common.typing import Array, Arrays, Bias, Results, Sizes, State
    from numbarnn.layers.planned import Tape

NEEDED = ("x", "weights")  # the gradients that backward computes if it is not told
CAN_BE_NEEDED = (*NEEDED, "states")


class Recurrent:
    """Apply a stack of recurrent layers with parameters to sequences: the base of `LSTM`, `GRU` and `RNN`.

        y, state = layer(x, state)                # inference
        y, state, tape = layer.forward(x, state)  # training
        grads = layer.backward(tape, dy, dstate)

    On device "cpu" and "sim", arrays are NumPy arrays; anything with `__array__`, such as a PyTorch tensor, is accepted
    too. On "cuda", arrays are CuPy arrays; anything with `__cuda_array_interface__` or DLPack is accepted. Nothing is
    copied between devices. Non-contiguous arrays are copied once.

    A layer can be pickled and copied (`copy.deepcopy`). The copy has its own weights, and draws the same random
    numbers.

    Attributes:
        weights: one flat buffer with all parameters, in the order of cuDNN's weight space. Assigning to it copies
            values in; the buffer stays the same object.
        parameters: name -> view of `weights`, with PyTorch's names. Write into a view, or assign to a name, to change a
            parameter. A tape has copies, so this does not change the gradients of an earlier forward.
        named: name -> view of `weights`, with the names of the cell's equations: `layer.named["R.f"]`, and with several
            layers or directions `layer.named["l1.reverse.R.f"]`. `layer.named.p()` returns the argument p with which
            the equations run in NumPy.
        hidden_size: H, or the tuple of all layers' sizes if they differ; hidden_sizes is always the tuple.
        bias_mode: "double", "none", "input" or "recurrent".
        cell, engine, dtype, device, input_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size,
            input_mode, cell_clip, clip_propagate_nan, checkpoint_every: the arguments.
    """

    _cell = None  # a cell's name or a `Cell`, set by the public classes

    def __init__(
        self, input_size: int, hidden_size: Sizes, num_layers: int | None = None, bias: Bias = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, *, seed: int | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        seed = checks.seed(seed)
        self.batch_first = checks.flag(batch_first, "batch_first")
        self.stack = Stack(
            self._cell, input_size, hidden_size, num_layers, bias, dropout, bidirectional, seed=seed, **options
        )
        with self.stack.allocating_weights():
            flat, key = initial_weights(self.stack, seed)
        for _, where, value in self.stack.space.initial(self.stack.cell.initial, key):
            flat[where] = value
        with self.engine.activate(), self.stack.allocating_weights():
            weights = self.engine.from_host(flat)
        self._take(weights)

    def _take(self, weights):
        """Use this buffer, an array of the engine, as the weights."""
        self._weights, self._parameters, self._named = weights, Parameters(self.stack, weights), None
        self._array_type, self._has_c = self.engine.array_module.ndarray, self.stack.cell.num_private == 1
        one_array = self.stack.cell.num_private < 2 and not self.stack.has_narrow
        self._repeats = self.stack.prepared is not None and one_array  # a call like an earlier one may skip all checks
        self.stack.caller = f"{self!r} with schedule={self.stack.schedule.name!r}"

    weights = property(lambda self: self._weights)  # in the class' docstring, as `parameters` is
    parameters = property(lambda self: self._parameters)

    @property
    def named(self) -> Named:
        if self._named is None:
            self._named = Named(self.stack.space, self._weights, self._parameters.write)
        return self._named

    @weights.setter
    def weights(self, value: Array) -> None:
        self._parameters.write(self._weights, value, "weights")

    @parameters.setter
    def parameters(self, value: Arrays) -> None:
        raise AttributeError("parameters cannot be replaced: copy values in with layer.load_state_dict(...)")

    def __getstate__(self):
        made_again = {"_weights", "_parameters", "_named", "_array_type", "_has_c", "_repeats"}
        kept = {name: value for name, value in vars(self).items() if name not in made_again}
        weights = self.engine.to_host(self._weights)
        return kept | {"stack": copy.copy(self.stack), "_weights": weights}

    def __setstate__(self, state):
        vars(self).update(state)
        with self.engine.activate():
            self._take(self.engine.from_host(state["_weights"]))

    engine = property(lambda self: self.stack.engine, doc="The engine it runs on.")
    cell = property(lambda self: getattr(self._cell, "name", self._cell), doc="The cell's name.")
    dtype = property(lambda self: self.stack.dtype, doc='"float32", "float64", "float16" or "bfloat16".')
    device = property(lambda self: self.engine.name, doc='"cpu", "cuda" or "sim".')
    bias_mode = property(lambda self: self.stack.bias_mode, doc='"double", "none", "input" or "recurrent".')
    bias = property(lambda self: self.bias_mode != "none", doc="Whether there are biases.")
    proj_size = property(lambda self: self.stack.proj_size, doc="P; 0 without projection.")
    cell_clip = property(lambda self: self.stack.cell_clip, doc="(lclip, rclip), the limits of c, or None.")
    clip_propagate_nan = property(lambda self: self.stack.clip_propagate_nan, doc="Whether a NaN in c stays NaN.")
    input_mode = property(lambda self: self.stack.input_mode, doc='"linear", "skip" or "given".')
    dropout = property(lambda self: self.stack.dropout, doc="Dropout probability between layers.")
    checkpoint_every = property(lambda self: self.stack.checkpoint_every, doc="k, see the argument, or None.")
    input_size = property(lambda self: self.stack.input_size, doc="I.")
    hidden_sizes = property(lambda self: self.stack.hidden_sizes, doc="H of each layer.")
    num_layers = property(lambda self: self.stack.num_layers, doc="L.")
    bidirectional = property(lambda self: self.stack.directions == 2, doc="Whether there are two directions.")

    @property
    def hidden_size(self) -> int | tuple[int, ...]:
        """Return H, or the tuple of all layers' sizes if they differ."""
        return self.hidden_sizes[0] if self.stack.equal_sizes else self.hidden_sizes

    @property
    def training_calls(self) -> int:
        """Number of training calls so far. Together with the seed, it decides which random numbers the next call draws.
        To resume training, set it to the saved number."""
        return self.stack.calls

    @training_calls.setter
    def training_calls(self, value: int) -> None:
        self.stack.calls = checks.natural(value, "training_calls")

    def __repr__(self):
        hidden = self.hidden_size if self.stack.equal_sizes else list(self.hidden_size)
        options = [f"{self.input_size}, {hidden}, num_layers={self.num_layers}"]
        options += [f"{name}=True" for name in ("batch_first", "bidirectional") if getattr(self, name)]
        if self.stack.cell.bias is None:  # else the equations say
            options += {"double": [], "none": ["bias=False"]}.get(self.bias_mode, [f"bias={self.bias_mode!r}"])
        options += [f"proj_size={self.proj_size}"] if self.proj_size else []
        options += [f"{name}={value!r}" for name, value in self.stack.cell_options.items()]
        options += [] if getattr(self, "reset_after", True) else ["reset_after=False"]
        options += [f"input_mode={self.input_mode!r}"] if self.input_mode != "linear" else []
        options += [f"dropout={self.dropout}"] if self.dropout else []
        options += [f"checkpoint_every={self.checkpoint_every}"] if self.checkpoint_every else []
        options[:0] = [] if isinstance(self._cell, str) else [self.cell]
        return f"{type(self).__name__}({', '.join(options)}, dtype={self.dtype!r}, device={self.device!r})"

    # ---------------------------------------------------------------- the two calls
    def __call__(
        self, x: Array, state: State | None = None, *, lengths: Any = None, resets: Any = None,
        padding_value: float = NO_PADDING_VALUE, output_states: bool = False, record: Iterable[str] = (),
        side: Arrays | None = None,
    ) -> Results:  # fmt: skip
        """Compute the outputs of all steps without keeping anything for backward (inference).

        Args:
            x: the input sequences, (T, B, I), or (B, T, I) with `batch_first`; or a `PackedSequence`.
            state: the initial state: h, or (h, c) for the LSTM, or the tuple of a cell's states. With L layers and D
                directions, each state has shape (L*D, B, H); h has shape (L*D, B, P) if it is projected. If layer sizes
                differ, pass a list with one array (D, B, H) per layer. None is zero.
            lengths: the number of steps of each sequence, (B,) ints from 0 to T in any order, on the host. x beyond a
                length is never used, and the second direction starts at the sequence's last step. None: all are T.
            resets: bools (T, B), or (B, T) with `batch_first`. True restarts sequence b at step t: neither direction
                carries a state across the boundary before step t.
            padding_value: value of y beyond a sequence's length.
            output_states: also return the cell states of every step; not with schedule "persistent".
            record: names of values in the equations, such as ("i", "f", "c"), that are also returned for every step.
                For a state, this is its value after the step. To compute the values, the layer runs the equations a
                second time.
            side: dict from the name of a side input (`numbarnn.side`) to its array (T, B, width), batch-first if x is.
                None: the last columns of x are the side inputs. Otherwise leave these columns out of x.

        Returns:
            y: the last layer's output at every step, (T, B, D*H), or (B, T, D*H), or packed like x.
            state: the state after each sequence's last step, shaped like the argument `state`. Pass it to the next call
                to continue.
            states: only with `output_states`: the tuple of the last layer's cell states (c of the LSTM) at every step,
                each shaped like y.
            values: only with `record`: a dict, name -> list with one array per layer, (T, B, D*H), or batch-first or
                packed as y is. They are 0 beyond a sequence's length.

        Raises:
            ValueError, TypeError: an argument has the wrong shape, dtype, device or range.
        """
        ordinary = lengths is None and resets is None and padding_value is NO_PADDING_VALUE and output_states is False
        ordinary = ordinary and record == () and side is None
        pair = type(state) is tuple and len(state) == 2
        fits = state is None or pair == self._has_c
        if ordinary and fits and self._repeats and type(x) is self._array_type:
            h, c = state if pair else (state, None)
            results = self.stack.infer_again(x, h, c, self._weights, self.batch_first)
            if results is not None:
                y, h, c = results
                return y, (h, c) if self._has_c else h
        x = x if side is None else arguments.with_side(self.stack, x, side, self.batch_first)
        return self._run(x, state, lengths, resets, padding_value, False, output_states, record)[:-1]

    def forward(
        self, x: Array, state: State | None = None, *, lengths: Any = None, resets: Any = None,
        padding_value: float = NO_PADDING_VALUE, output_states: bool = False, record: Iterable[str] = (),
        side: Arrays | None = None,
    ) -> Results:  # fmt: skip
        """Compute the outputs of all steps for training: with dropout and the cell's random numbers.

        Arguments and results are those of a call of the layer (`__call__`). One more result comes last:

        Returns:
            tape: what one call of `backward` needs, with copies of x and of the weights.
        """
        x = x if side is None else arguments.with_side(self.stack, x, side, self.batch_first)
        results = self._run(x, state, lengths, resets, padding_value, True, output_states, record)
        results[-1].has_side = side is not None
        return results

    def _run(self, x, state, lengths, resets, padding_value, training, output_states, record=()):
        x, packing, lengths, batch_first = arguments.input_of(self.stack, x, lengths, self.batch_first)
        steps, batch = x.shape[1::-1] if batch_first else x.shape[:2]
        hx, cx = arguments.states(self.stack, state, "state", batch)
        ends = sequences.EVERY_STEP
        if lengths is not None or resets is not None or padding_value is not NO_PADDING_VALUE:
            ends = sequences.checked(self.engine, lengths, resets, padding_value, steps, batch, batch_first)
        if output_states:
            checks.keeps_states(self.stack, checks.flag(output_states, "output_states"))
            ends = replace(ends, every_state=True)
        if record != ():
            from numbarnn.layers import insides  # traces cells

            record = insides.checked(self.stack, record)
        key = (self.stack.seed, self.stack.calls) if training else None
        y, hy, cy, *states, tape = self.stack.forward(x, hx, cx, self.weights, training, batch_first, ends)
        if states:
            states = private.split_steps(states[0], self.stack.cell.num_private, self.stack.directions)
            states = [private.steps_for_callers(states, self.stack, first=1) if self.stack.has_narrow else states]
        if self.stack.has_narrow:
            y = arguments.output(self.stack, y)
        if packing is not None:
            pack = partial(arguments.packed, self.engine, packing)
            y, states = pack(y), [tuple(map(pack, part)) for part in states]
            if training:
                tape.packing = packing
        if record:
            inside = insides.Insides(self, x, (hx, cx), ends, (batch_first, packing), record, key)
            states = [*states, inside.values]
            if training:
                tape.insides = inside
        return y, arguments.as_state(self.stack, hy, cy), *states, tape

    def stepper(self, batch: int = 1, state: State | None = None) -> Stepper:
        """Make a `Stepper`, which runs one step per call and keeps the state.

            step = layer.stepper(batch=1)
            y = step(x)  # x (B, I), y (B, H)

        Args:
            batch: number of sequences (B).
            state: the initial state, as calls of the layer take it. None is zero.

        Raises:
            ValueError, TypeError: the layer is bidirectional, or an argument does not fit.
        """
        return Stepper(self, batch, state)

    def backward(
        self, tape: Tape, dy: Array | None = None, dstate: State | None = None, *, dw: Array | None = None,
        dstates: tuple[Array | None, ...] | None = None, need: Iterable[str] = NEEDED, retain: bool = False,
        per_sequence: bool = False,
    ) -> Gradients:  # fmt: skip
        """Compute the gradients of x, the initial state and all parameters.

        Args:
            tape: the tape that this layer's `forward` returned. Backward uses it up, unless `retain` is set.
            dy: dL/dy, in the shape of y (packed if y is). It is not read beyond sequences' lengths. None is zero.
            dstate: dL/d(final state), shaped like the state. None means zero, for all of it or for single entries of a
                tuple.
            dstates: gradients of the cell states at every step, in the form of forward's `states`, not read
                beyond sequences' lengths. None is zero, also for single entries.
            dw: a flat buffer, shaped like `weights`, to which gradients are added, such as an earlier
                `Gradients.weights`. Do not pass the layer's own weights. None starts from zero.
            need: which gradients to compute: any of "x", "weights" and "states". The layer skips products that
                none of them needs. It always computes the initial state's gradient. "states" adds `Gradients.states`,
                the gradients of the states after each step; it requires a `forward` with `record`.
            retain: keep the tape, so that you can call backward again. This takes (T, B, gates*H) more numbers per
                layer and direction.
            per_sequence: compute each sequence's gradients of the parameters: `Gradients.weights` is (B, size),
                and each entry of `params` has B in front of its shape. Not with `dw` or `checkpoint_every`.

        Returns:
            a `Gradients`. What `need` leaves out is None.

        Raises:
            ValueError, TypeError: an argument does not fit; the tape was used, or made by another layer.
        """
        arguments.require_own(self.stack, tape, unused=True)
        wanted = checks.needed(need, CAN_BE_NEEDED)
        projects = self.proj_size or self.stack.cell.projected
        if "states" in wanted and tape.insides is not None and tape.insides.used:
            raise ValueError("need=... has 'states', which a tape computes only once: call forward again")
        if "states" in wanted and (tape.insides is None or dstates is not None or projects):
            why = "cannot go with dstates: pass dstates=None" if dstates is not None else None
            why = why or ("cannot go with a projection: leave it out" if projects else None)
            raise ValueError(f"'states' in need {why or 'needs recorded values: call forward with record=(...)'}")
        if dw is not None and "weights" not in wanted:
            raise ValueError("dw must be None without 'weights' in need: nothing would be added to it")
        apart = checks.flag(per_sequence, "per_sequence") and "weights" in wanted
        needs = Need("x" in wanted, "weights" in wanted, checks.flag(retain, "retain"), by_sequence=apart)
        if apart and (dw is not None or tape.calls.has_checkpoints):
            conflict = "dw: pass dw=None" if dw is not None else "checkpoint_every: make the layer without it"
            raise ValueError(f"per_sequence cannot go with {conflict}")
        problem, packing = tape.forward.problem, tape.packing
        width = self.stack.directions * self.stack.output_sizes[-1]
        sizes = problem.steps, problem.batch, problem.batch_major
        dy = arguments.result_gradient(self.stack, dy, "dy", width, sizes, packing)
        dhy, dcy = arguments.states(self.stack, dstate, "dstate", problem.batch, gradients=True)
        dstates = arguments.every_state(self.stack, dstates, problem, packing)
        if dw is not None:
            others = {"weights": self._weights, "x": tape.x, "dy": dy}
            others |= {"dstate": (dhy, dcy), "dstates": dstates}
            dw = arguments.added_to(self.stack, dw, others)
        dy = arguments.output_gradient(self.stack, dy) if self.stack.has_narrow else dy
        dx, dhx, dcx = self.stack.backward_data(tape, dy, dhy, dcy, NEW if dw is None else dw, needs, dstates)
        states = tape.insides.backward(dy, dhy, dcy) if "states" in wanted else None
        if not needs.again:
            tape.insides = None  # a tape that is used up takes no memory
        if packing is not None and dx is not None:
            dx = arguments.packed(self.engine, packing, dx)
        split = tape.has_side and dx is not None
        dx, side = self.stack.cell.parameters.parts_of(dx) if split else (dx, None)
        return Gradients(dx, arguments.as_state(self.stack, dhx, dcx), tape.dw, self.stack.space, states, side)

    def jvp(
        self, x: Array, dx: Array | None = None, state: State | None = None, dstate: State | None = None, *,
        weights: Array | None = None, lengths: Any = None, resets: Any = None, training: bool = False,
        tape: bool = False,
    ) -> Results:  # fmt: skip
        """Compute outputs and their derivative in one direction (a Jacobian-vector product, forward mode).

        dx, dstate and weights are the direction: the changes of x, the initial state and the parameters. None means
        zero. For float16 and bfloat16 layers, jvp computes in float32 and rounds the results once.

        Args:
            x, state, lengths, resets: as calls of the layer take them. y is 0 beyond a sequence's length.
            dx: tangent of x, in its shape (packed if x is).
            dstate: tangent of the initial state, in its form.
            weights: tangent of all parameters, a flat buffer in the layout of the layer's `weights`.
            training: apply dropout and the cell's random numbers: the same as `forward` would draw if you called it
                now.
            tape: also return what `hvp` needs.

        Returns:
            y, dy, state, dstate: the outputs, their tangent, the final state and its tangent; with `tape` also a tape.

        Raises:
            ValueError, TypeError: an argument does not fit.
            NotImplementedError: the cell was written as functions; only cells made of equations have tangents.

        Example:
            >>> layer = numbarnn.GRU(8, 16, device="cpu")
            >>> x, dx = numpy.ones((2, 5, 3, 8), "float32")
            >>> y, dy, h, dh = layer.jvp(x, dx)
            >>> dy.shape
            (5, 3, 16)
        """
        from numbarnn.layers import second_order  # traces cells

        return second_order.jvp(self, (x, state), (dx, dstate, weights), (lengths, resets), training, tape)

    def hvp(
        self, tape: Any, dy: Array | None = None, dstate: State | None = None, *, ddy: Array | None = None,
        ddstate: State | None = None,
    ) -> tuple[Gradients, Gradients]:  # fmt: skip
        """Compute the gradients of a loss and their derivative in the direction of a `jvp` (a Hessian-vector product).

        Args:
            tape: the tape that this layer's last `jvp(..., tape=True)` returned. hvp uses it up.
            dy, dstate: the loss' gradients dL/dy and dL/dstate, as `backward` takes them.
            ddy, ddstate: the derivatives of dy and dstate in the direction of the jvp. For L = sum(l(y)), ddy is l''(y)
                times jvp's dy. None means zero, as for a loss that is linear in y.

        Returns:
            (grads, hvp): the gradients as `backward` returns them, and the Hessian times the direction in the same
            form.

        Raises:
            ValueError, TypeError: an argument does not fit; the tape was used, or made by another layer.
        """
        from numbarnn.layers import second_order

        return second_order.hvp(self, tape, dy, dstate, ddy, ddstate)

    def check(self) -> None:
        """Wait for the device, and raise an error if a call of any layer failed there.

        Calls on a GPU return before they are done. If one fails (a block of a persistent kernel timed out), its results
        become NaN, and so does any `dw` it added to. The next call on that device raises. Call `check` before
        results leave the program, such as before you write a checkpoint. On the CPU, a failing call raises immediately.

        Raises:
            RuntimeError: a call failed. The message names the layer, the pass, what waited for what, and the cure.
        """
        self.stack.check()

    def dropout_masks(self, tape: Tape) -> list[Array]:
        """Return the dropout masks of a training call: NumPy arrays (T, B, D*H), one per layer but the last.

        Each element is 0 or 1 / (1 - p).
        """
        arguments.require_own(self.stack, tape)
        return drawn.dropout_masks(tape.forward.call, self.dtype, self.stack.output_sizes)

    def drop_connect_masks(self, tape: Tape) -> dict[str, Array]:
        """Return the masks of dropped weights (`drop_connect`) of a training call.

        Returns:
            A dict from the name of each R, such as "weight_hh_l0", to its mask: a NumPy array shaped like the matrix
            that multiplies h in a step. Each element is 0 or 1 / (1 - p). The dict is empty if the cell drops no
            weights.
        """
        arguments.require_own(self.stack, tape)
        return drawn.drop_connect_masks(tape.forward.call, self.dtype)

    def noise(self, tape: Tape) -> list[Array]:
        """Return the random numbers (dropout, zoneout) that the cell drew in a training call.

        Returns:
            NumPy arrays (D, T, B, N, H), one per layer, with N numbers per unit and step; empty if the cell draws none.
            Index t is the time step, also for the second direction. The arrays include numbers beyond a sequence's
            length, which were not used. If a state has more units than h, H is the size of that state.
        """
        arguments.require_own(self.stack, tape)
        return drawn.noise(tape.forward.call)

    def explain(self, shape: Sequence[int]) -> str:
        """Describe how forward and backward of a training call run: the schedule and why it was chosen, the launches,
        the plan.

        Args:
            shape: the shape of x.

        Returns:
            text. With `checkpoint_every`, it also states the memory saved and the time added, and describes each
            kind of segment (the steps from one checkpoint to the next).

        Raises:
            ValueError, TypeError: x cannot have this shape.
            RuntimeError: the schedule cannot run the problem. The message says why, with the numbers.
        """
        steps, batch = arguments.steps_and_batch(self.stack, shape, self.batch_first)
        problem = self.stack.problem(steps, batch, training=True)
        return "\n".join([f"{self!r} on {self.engine.device}", *lines_about(self.stack.schedule, problem)])

    # ---------------------------------------------------------------- parameters
    def state_dict(self, named: bool = False) -> dict[str, np.ndarray[Any, Any]]:
        """Return a copy of all parameters, name -> NumPy array. Names are PyTorch's; with `named=True` they are the
        equations'."""
        views = self.named if named else self.parameters
        return {name: self.engine.to_host(view) for name, view in views.items()}

    def load_state_dict(self, state_dict: Arrays) -> None:
        """Copy parameters into the layer. If it raises, no parameter has changed.

        Args:
            state_dict: a dict from names to arrays, as `state_dict()` or `state_dict(named=True)` returns it, or a
                PyTorch state dict with tensors on the CPU.

        Raises:
            ValueError, TypeError: a name is missing or unknown, a shape is wrong, or a value is no array of real
                numbers. Or a finite number is beyond the range of the layer's dtype.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"state_dict must map names to arrays, but is a {type(state_dict).__qualname__}")
        views = self.parameters
        if not state_dict.keys() ^ set(self.named):
            views = self.named
        missing = [name for name in views if name not in state_dict]
        unknown = [name for name in state_dict if name not in views]
        if missing or unknown:
            raise ValueError(f"state_dict does not fit {self!r}: missing {missing}, unknown {unknown}")
        arrays = {
            name: array_checks.host_array(state_dict[name], f"state_dict[{name!r}]", view.shape, self.dtype)
            for name, view in views.items()
        }
        with self.engine.activate():
            for name, array in arrays.items():
                views[name][...] = self.engine.from_host(array)
