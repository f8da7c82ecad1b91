"""LSTM, GRU and RNN as objects with parameters: PyTorch's arguments, shapes, initialisation and state_dict keys."""

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
from numbarnn.layers.sequences import NO_PADDING_VALUE
from numbarnn.layers.stack import Stack
from numbarnn.layers.stepper import Stepper
from numbarnn.programs.backward import Need

if TYPE_CHECKING:
    from numbarnn.common.typing import Array, Arrays, Bias, Results, Sizes, State
    from numbarnn.layers.tape import Tape

NEEDED = ("x", "weights")  # the gradients that backward can be asked for


class Recurrent:
    """A stack of recurrent layers with parameters; the base of `LSTM`, `GRU` and `RNN`.

    Calling it is inference: `y, state = layer(x, state)`. Training is `y, state, tape = layer.forward(x, state)` and
    `grads = layer.backward(tape, dy, dstate)`. Both take `lengths` of sequences, and where they begin anew (`resets`).

    Arrays are NumPy arrays on device "cpu" (and "sim"), CuPy arrays on "cuda" (there, anything with
    `__cuda_array_interface__` or DLPack is taken); nothing is copied between devices. Non-contiguous arrays are copied
    once. What has `__array__`, such as PyTorch's tensors on the CPU, is taken too where NumPy arrays are; results are
    NumPy arrays all the same, of which `torch.from_numpy(y.copy())` makes tensors.

    Layers can be pickled and copied (`copy.deepcopy`): a copy has weights of its own, and draws at random what this one
    would draw.

    Attributes:
        weights: the flat buffer of all parameters in cuDNN's weight-space order; it stays the same object: assigning to
            it copies values in.
        parameters: name -> view of it. Write through these views (in place), or assign to a name, which copies the
            values in, to change parameters. A tape has copies of the weights and of x: changing them between forward
            and backward does not change the gradients.
        named: the same by the names that the cell's equations give them: `layer.named["R.f"]` of one layer and
            direction, `layer.named["l1.reverse.R.f"]` of several; `layer.named.p()` is the equations' p (`Named`).
        cell, engine, dtype, input_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size, input_mode,
            cell_clip, clip_propagate_nan: as made; bias_mode: "double", "none", "input" or "recurrent".
        hidden_size: H, or where layers' sizes differ the tuple of them; hidden_sizes: the tuple in any case.
    """

    _cell = None  # the cell's name, set by the public classes

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
        """Hold this buffer, an array of the engine, from now on."""
        self._weights, self._parameters, self._named = weights, Parameters(self.stack, weights), None
        self._array_type, self._has_c = self.engine.array_module.ndarray, self.stack.cell.num_private == 1
        self._repeats = self.engine.prepares_calls and self.stack.cell.num_private < 2 and not self.stack.has_narrow
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
        raise AttributeError("parameters cannot be replaced: layer.load_state_dict(...) copies values for all names in")

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
    cell_clip = property(lambda self: self.stack.cell_clip, doc="(lclip, rclip), the limits of c; None without.")
    clip_propagate_nan = property(lambda self: self.stack.clip_propagate_nan, doc="Whether a NaN in c stays NaN.")
    input_mode = property(lambda self: self.stack.input_mode, doc='"linear", "skip" or "given".')
    dropout = property(lambda self: self.stack.dropout, doc="Dropout probability between layers.")
    checkpoint_every = property(lambda self: self.stack.checkpoint_every, doc="k, see the arguments; None without.")
    input_size = property(lambda self: self.stack.input_size, doc="I.")
    hidden_sizes = property(lambda self: self.stack.hidden_sizes, doc="H of each layer.")
    num_layers = property(lambda self: self.stack.num_layers, doc="L.")
    bidirectional = property(lambda self: self.stack.directions == 2, doc="Whether there are two directions.")

    @property
    def hidden_size(self) -> int | tuple[int, ...]:
        """H of all layers; where they differ, of each."""
        return self.hidden_sizes[0] if self.stack.equal_sizes else self.hidden_sizes

    @property
    def training_calls(self) -> int:
        """Number of training calls so far; with the seed, the key of what the next one draws. Set it to resume."""
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
        options += [f"cell_clip={self.cell_clip}"] if self.cell_clip else []
        options += [] if self.clip_propagate_nan else ["clip_propagate_nan=False"]
        options += [] if getattr(self, "reset_after", True) else ["reset_after=False"]
        options += [f"input_mode={self.input_mode!r}"] if self.input_mode != "linear" else []
        options += [f"dropout={self.dropout}"] if self.dropout else []
        options += [f"checkpoint_every={self.checkpoint_every}"] if self.checkpoint_every else []
        options[:0] = [] if isinstance(self._cell, str) else [self.cell]
        return f"{type(self).__name__}({', '.join(options)}, dtype={self.dtype!r}, device={self.device!r})"

    # ---------------------------------------------------------------- the two calls
    def __call__(
        self, x: Array, state: State | None = None, *, lengths: Any = None, resets: Any = None,
        padding_value: float = NO_PADDING_VALUE, output_states: bool = False,
    ) -> Results:  # fmt: skip
        """Inference: nothing is kept for backward, nothing drawn at random.

        Args:
            x: (T, B, I), or (B, T, I) with `batch_first`; T may be 1. Or a `PackedSequence` of such x.
            state: initial state; None is zero. (h, c) for the LSTM, else h; each (L*D, B, H), or a list with one
                (D, B, H) per layer if sizes differ. With projection h is P wide.
            lengths: (B,) ints on the host, 0 to T, in any order; None: all are T. What stands in x beyond a sequence's
                length is ignored; the backward direction starts at its last element.
            resets: (T, B), or (B, T) with `batch_first`, bools: sequence b begins anew at time t. Steps from t
                on do not depend on earlier steps. In the backward direction, steps before t do not depend on step t
                or later ones.
            padding_value: what y is beyond a sequence's length.
            output_states: return the private states of every step too; not with schedule "persistent".

        Returns:
            y: (T, B, D*H) of the last layer, or (B, T, D*H), or packed as x.
            state: after each sequence's last step, in the form of the argument: pass it on to continue.
            states, only with `output_states`: a tuple of the last layer's private states (c of the LSTM), each in the
                form of y.

        Raises:
            ValueError, TypeError: an argument has the wrong shape, dtype, device or range.
        """
        ordinary = lengths is None and resets is None and padding_value is NO_PADDING_VALUE and output_states is False
        pair = type(state) is tuple and len(state) == 2
        fits = state is None or pair == self._has_c
        if ordinary and fits and self._repeats and type(x) is self._array_type:
            h, c = state if pair else (state, None)
            results = self.stack.infer_again(x, h, c, self._weights, self.batch_first)
            if results is not None:
                y, h, c = results
                return y, (h, c) if self._has_c else h
        return self._run(x, state, lengths, resets, padding_value, False, output_states)[:-1]

    def forward(
        self, x: Array, state: State | None = None, *, lengths: Any = None, resets: Any = None,
        padding_value: float = NO_PADDING_VALUE, output_states: bool = False,
    ) -> Results:  # fmt: skip
        """Training: as a call, with dropout and the cell's random numbers, keeping what `backward` needs.

        Returns:
            y, state, and states with `output_states`: as a call.
            tape: for one call of `backward`.
        """
        return self._run(x, state, lengths, resets, padding_value, True, output_states)

    def _run(self, x, state, lengths, resets, padding_value, training, output_states):
        packing, batch_first = None, self.batch_first
        if type(x) is not self._array_type and sequences.is_packed(x):
            packing, x = arguments.unpacked(self.stack, x, "x", self.input_size)
            if lengths is not None:
                raise ValueError("lengths must be None with a packed x, which has lengths of its own")
            lengths, batch_first = packing.lengths, False
        x = arguments.sequence(self.stack, x, "x", self.input_size, batch_first)
        steps, batch = x.shape[1::-1] if batch_first else x.shape[:2]
        hx, cx = arguments.states(self.stack, state, "state", batch)
        about = sequences.EVERY_STEP
        if lengths is not None or resets is not None or padding_value is not NO_PADDING_VALUE:
            about = sequences.checked(self.engine, lengths, resets, padding_value, steps, batch, batch_first)
        if output_states:
            checks.keeps_states(self.stack, checks.flag(output_states, "output_states"))
            about = replace(about, every_state=True)
        y, hy, cy, *states, tape = self.stack.forward(x, hx, cx, self.weights, training, batch_first, about)
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
        return y, arguments.as_state(self.stack, hy, cy), *states, tape

    def stepper(self, batch: int = 1, state: State | None = None) -> Stepper:
        """A `Stepper`: inference one step at a time, with the state kept from one to the next.

            step = layer.stepper(batch=1)
            y = step(x)  # x (B, I), y (B, H)

        Args:
            batch: B.
            state: the state to begin with; None is zero.

        Raises:
            ValueError, TypeError: the layer is bidirectional, or an argument does not fit.
        """
        return Stepper(self, batch, state)

    def backward(
        self, tape: Tape, dy: Array | None = None, dstate: State | None = None, *, dw: Array | None = None,
        dstates: tuple[Array | None, ...] | None = None, need: Iterable[str] = NEEDED, retain: bool = False,
    ) -> Gradients:  # fmt: skip
        """Gradients of all inputs and parameters.

        Args:
            tape: of one `forward` of this layer. It is used up, unless retained.
            dy: the gradient of y, of y's shape (packed if y was); None is zero. Ignored beyond sequences' lengths.
            dstate: the gradient of the final state, in its form; None is zero (also for one of the LSTM's two).
            dstates: the gradients of the private states of every step, in the form of `states` from `forward` with
                `output_states`. None means zero, for all or for single entries. Ignored beyond sequences' lengths.
            dw: a flat buffer, laid out as the layer's `weights`, to which the parameters' gradients are added, such as
                the `weights` of earlier `Gradients`. It must not be the layer's own. None starts from zero.
            need: the gradients to compute, by default "x" and "weights". Products that only other gradients need are
                skipped. The gradients of the initial state are always computed.
            retain: keep the tape for further calls of backward. This needs additional memory for the gradients of
                pre-activations, (T, B, G*H) per layer and direction.

        Returns:
            a `Gradients`; what was not needed is None.

        Raises:
            ValueError, TypeError: an argument does not fit; the tape was used, or made by another layer.
        """
        arguments.require_own(self.stack, tape)
        arguments.require_unused(tape)
        wanted = checks.needed(need, NEEDED)
        if dw is not None and "weights" not in wanted:
            raise ValueError("dw must be None where need has no 'weights', as nothing would be added to it")
        asked = Need("x" in wanted, "weights" in wanted, checks.flag(retain, "retain"))
        work, packing = tape.forward, tape.packing
        if dy is not None:
            width = self.stack.directions * self.stack.output_sizes[-1]
            if packing is not None:
                dy = arguments.unpacked(self.stack, dy, "dy", width, packing)[1]
            dy = arguments.sequence(self.stack, dy, "dy", width, work.batch_major, (work.steps, work.batch))
        dhy, dcy = arguments.states(self.stack, dstate, "dstate", work.batch, gradients=True)
        dstates = arguments.every_state(self.stack, dstates, work, packing)
        accumulate = dw is not None
        if accumulate:
            others = {"weights": self._weights, "x": tape.x, "dy": dy}
            others |= {"dstate": (dhy, dcy), "dstates": dstates}
            dw = arguments.added_to(self.stack, dw, others)
        dy = arguments.output_gradient(self.stack, dy)
        adds = accumulate or not asked.weights
        dx, dhx, dcx = self.stack.backward_data(tape, dy, dhy, dcy, dw, adds, asked, dstates)
        if packing is not None and dx is not None:
            dx = arguments.packed(self.engine, packing, dx)
        return Gradients(dx, arguments.as_state(self.stack, dhx, dcx), tape.dw, self.stack.space)

    def check(self) -> None:
        """Wait for the device, and raise RuntimeError if a call on it failed: of this layer or another; it says which.

        Calls on a GPU return before they are done. One that fails there (blocks of a persistent kernel waited in vain,
        as the device was taken from them for long) leaves NaN in all of its results, a `dw` that it added to included,
        and the next call of any layer on that device raises. Call this where results leave the program: before a
        checkpoint is written, say. On the CPU calls fail where they are made, so there is nothing to find here.

        Raises:
            RuntimeError: the layer whose call failed, the pass, what waited for what, and what to do.
        """
        self.stack.check()

    def dropout_masks(self, tape: Tape) -> list[Array]:
        """The dropout masks of a tape's call: a list of NumPy arrays (T, B, D*H), one per layer but the last; an
        element is 0 or 1 / (1 - p)."""
        arguments.require_own(self.stack, tape)
        return drawn.dropout_masks(tape.forward.call, self.dtype, self.stack.output_sizes)

    def drop_connect_masks(self, tape: Tape) -> dict[str, Array]:
        """The masks of the weights that a tape's call dropped out (`Cell.drop_connect`): name of each R -> NumPy array
        of the shape that steps multiply with; an element is 0 or 1 / (1 - p). Empty where the cell drops none."""
        arguments.require_own(self.stack, tape)
        return drawn.drop_connect_masks(tape.forward.call, self.dtype)

    def noise(self, tape: Tape) -> list[Array]:
        """The random numbers that units drew in a tape's call (`Cell.noise`): a list of NumPy arrays (D, T, B, N, H),
        one per layer, of N numbers per unit and step; empty where the cell draws none. Where a state has more units
        than h, H is as many as it has.

        Those of time t are in place t for both directions; there are some for times beyond a sequence's length too.
        """
        arguments.require_own(self.stack, tape)
        return drawn.noise(tape.forward.call)

    def explain(self, shape: Sequence[int]) -> str:
        """What a training call with x of that shape does, and backward, and why, as text: the schedule, what others
        would do, launches and where weights live, and the plan; with checkpoints what they save and cost, and the same
        of each kind of segment.

        Raises:
            ValueError, TypeError: not the shape of an x.
            RuntimeError: the schedule cannot run it; says why, with the numbers.
        """
        steps, batch = arguments.steps_and_batch(self.stack, shape, self.batch_first)
        problem = self.stack.problem(steps, batch, training=True)
        return "\n".join([f"{self!r} on {self.engine.device}", *lines_about(self.stack.schedule, problem)])

    # ---------------------------------------------------------------- parameters
    def state_dict(self, named: bool = False) -> dict[str, np.ndarray[Any, Any]]:
        """Name -> NumPy copy of each parameter, with PyTorch's names; with `named` those of the cell's equations."""
        views = self.named if named else self.parameters
        return {name: self.engine.to_host(view) for name, view in views.items()}

    def load_state_dict(self, state_dict: Arrays) -> None:
        """Copy parameters in; names, shapes and values are checked first, so that a mistake changes nothing.

        Args:
            state_dict: name -> array, as `state_dict` returns it, in either form, or torch's with tensors on the CPU.

        Raises:
            ValueError, TypeError: a name is missing or unknown, a shape is wrong, a value is no array of real numbers,
                or has finite numbers beyond the range of the layer's dtype.
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
