"""PyTorch modules for any cell, and drop-in LSTM, GRU and RNN.

They are instances of `torch.nn.RNNBase`, but not of `torch.nn.LSTM`, `GRU` or `RNN`, which TorchDynamo cannot compile.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import _VF
from torch.nn import Module
from torch.nn.utils.rnn import PackedSequence

from numbarnn import cells
from numbarnn.cells.definition import CELL_OPTIONS
from numbarnn.layers.checks import flag, keeps_states, side_by_name
from numbarnn.layers.sequences import NO_PADDING_VALUE
from numbarnn.programs.states import with_each
from numbarnn.torch import checks
from numbarnn.torch.computation import Computation, Computed
from numbarnn.torch.core import CallSettings

if TYPE_CHECKING:
    from typing import TypedDict

    from typing_extensions import Unpack

    from numbarnn.common.typing import AllowTF32, Bias, Cell, Results, Sizes

    class OfAllStacks(TypedDict, total=False):
        """Arguments of LSTM, GRU and RNN that torch.nn does not have."""

        input_mode: Literal["linear", "skip", "given"]
        schedule: str
        allow_tf32: AllowTF32
        checkpoint_every: int | None
        split: bool


# Options that torch.nn does not have, with their defaults.
_BESIDES = {
    "reset_after": True, "input_mode": "linear", "schedule": "auto", "allow_tf32": False, "checkpoint_every": None,
    "split": False, **{name: default for name, (*_, default) in CELL_OPTIONS.items()},
}  # fmt: skip
_OF_STACKS = [name for name in _BESIDES if name != "reset_after"]  # which is another cell


class Recurrent(Computed, torch.nn.RNNBase):
    """Apply layers of any cell to sequences, with the interface of `torch.nn.LSTM` and the cell as first argument.

    Parameters have torch.nn's names (`weight_ih_l0`, ..., `weight_hr_l0_reverse`). Parameters that torch.nn does not
    have are named as in the equations. All are views of one flat buffer, see `flatten_parameters`.

    Args:
        cell: a cell of `@nr.cell` or of `nr.cells.library`, or a name in `nr.cells.CELLS`.
        input_size: number of features of x at each step (I).
        hidden_size: number of units of each layer (H), or a list with one number per layer. Layers that differ in size
            run one after another.
        num_layers: number of layers (L) if hidden_size is one int.
        bias: True, False, "double", "none", "input" or "recurrent", unless the cell's equations fix the biases.
        batch_first: use (B, T, ...) instead of (T, B, ...) for x and y. States keep their shape.
        dropout: probability of dropping an element of a layer's output in training, except the last layer's. On the CPU
            it draws the same random numbers as torch.nn.
        bidirectional: add a second direction that runs backward in time. y concatenates both.
        proj_size: size P of the projected h, for an LSTM or a cell that projects its output. 0: no projection.
        device, dtype: device and dtype of the parameters. On the CPU half precision is computed in float32.
        input_mode, cell_clip, clip_propagate_nan, allow_tf32, checkpoint_every: see `numbarnn.LSTM`.
        schedule: as in `numbarnn.LSTM`, or "loop": a slow loop over time of PyTorch's own operations. It allows
            derivatives of any order, `torch.onnx.export`, hooks, and devices other than CPUs and NVIDIA's GPUs.
        split: make each matrix and vector of the equations a parameter (`W_i_l0`, `R_f_l0_reverse`, `peep_l0`), which
            an optimizer can treat in its own way. State dicts with and without `split` are interchangeable.

    Raises:
        TypeError, ValueError: an argument is wrong, as in torch.nn.

    Attributes:
        mode: "LSTM", "GRU", "RNN_TANH" or "RNN_RELU", as in torch.nn; the name of any other cell.
        cell: the `numbarnn.cells.Cell`.
        named: the parameters by the names of the equations, such as `module.named["R.f"]`.

    Example:
        >>> import numbarnn as nr
        >>> module = Recurrent(nr.cells.library.min_gru, 8, 16, num_layers=2)
        >>> y, h = module(torch.zeros(5, 3, 8))  # (T, B, I)
        >>> y.shape, h.shape
        (torch.Size([5, 3, 16]), torch.Size([2, 3, 16]))
    """

    def __init__(
        self, cell: Cell, input_size: int, hidden_size: Sizes, num_layers: int = 1, bias: Bias = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0,
        device: Any = None, dtype: torch.dtype | None = None, *,
        input_mode: Literal["linear", "skip", "given"] = "linear", schedule: str = "auto",
        allow_tf32: AllowTF32 = False, checkpoint_every: int | None = None, split: bool = False, **cell_options: Any,
    ) -> None:  # fmt: skip
        Module.__init__(self)  # not RNNBase's, which makes parameters of the four modes that it knows
        checks.options(bias, batch_first, dropout, checks.layers_of(hidden_size, num_layers))
        checks.sizes(input_size, hidden_size, num_layers, proj_size)
        self.cell = cells.get(cell)
        self.mode = self.cell.name.upper() if self.cell.name in cells.CELLS else self.cell.name
        self.input_size, self.hidden_size, self.proj_size = input_size, hidden_size, proj_size
        self.num_layers = checks.layers_of(hidden_size, num_layers)
        self.bias, self.batch_first, self.dropout, self.bidirectional = bias, batch_first, float(dropout), bidirectional
        if unknown := [name for name in cell_options if name not in CELL_OPTIONS]:
            raise TypeError(f"{type(self).__name__}.__init__() got an unexpected keyword argument {unknown[0]!r}")
        vars(self).update({name: _BESIDES[name] for name in CELL_OPTIONS} | cell_options)
        self.input_mode, self.schedule = input_mode, schedule
        self.allow_tf32, self.checkpoint_every = allow_tf32, checkpoint_every
        self.split = flag(split, "split")
        self._set_up()
        for name, shape in self._computation.shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))
        self.reset_parameters()
        self._start_anew()  # `_set_up` asks where the parameters are

    def _set_up(self):
        """Make the `Computation` from the attributes."""
        names = ("cell", "input_size", "hidden_size", "bias", "bidirectional", "proj_size", *_OF_STACKS)
        options = {name: getattr(self, name) for name in names}
        options["num_layers"] = None if isinstance(self.hidden_size, list | tuple) else self.num_layers
        drops = self.dropout > 0 and self.num_layers > 1
        if drops and self._is_on_gpu() and self.schedule != "loop":
            drops, options["dropout"] = False, self.dropout
        self._computation = Computation(options, by_layer=drops)
        self._flat_weights_names, self._all_weights = list(self._computation.shapes), self._computation.layers

    def _is_on_gpu(self):
        return any(one.is_cuda for one in self._parameters.values())

    # ---------------------------------------------------------------- parameters
    def reset_parameters(self) -> None:
        """Initialize all parameters: uniformly in ±1/√H, as torch.nn does, or as the equations say (`nr.initial`)."""
        for name, bound in self._computation.bounds.items():
            torch.nn.init.uniform_(getattr(self, name), -bound, bound)
        with torch.no_grad():
            for name, first, last, value in self._computation.initial():
                parameter = getattr(self, name)
                values = torch.tensor(value, dtype=parameter.dtype, device=parameter.device)
                parameter.view(-1)[first:last] = values

    def parameter_groups(self, options: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Group the parameters for an optimizer by their names in the equations.

            groups = module.parameter_groups({"R.*": {"lr": 1e-4}, "b.*": {"weight_decay": 0.0}})
            optimizer = torch.optim.Adam(groups, lr=1e-3)

        Args:
            options: pattern (with * and ?) for names in `named` -> options of the optimizer. The first pattern
                that fits a name counts. Parameters that no pattern fits form the last group, without options.

        Raises:
            ValueError: a pattern fits no parameter, or only part of one (use `split=True`).
        """
        if not isinstance(options, Mapping):
            raise TypeError(f"parameter_groups takes a dict, pattern -> options, not {options!r}")
        for pattern, own in options.items():
            if not isinstance(own, Mapping) or "params" in own:
                raise TypeError(
                    f"parameter_groups: {pattern!r} must have a dict of options without 'params', got {own!r}"
                )
        names, named = {parameter: [] for parameter in self.parameters()}, self.named
        for name in named:
            owner = named.owner(name)
            if owner not in self._parameters:
                raise ValueError(
                    f"parameter_groups: {owner} is computed by a parametrization: group the parameters of "
                    "module.parametrizations yourself"
                )
            names[getattr(self, owner)].append(name)
        groups = {pattern: [] for pattern in (*options, None)}
        for parameter, own in names.items():
            fits = {next((one for one in options if fnmatchcase(name, one)), None) for name in own}
            if len(fits) > 1:
                raise ValueError(
                    f"parameter_groups: {', '.join(own)} are one parameter, but different patterns fit them: use one "
                    "pattern for all, or make the module with split=True"
                )
            groups[fits.pop()].append(parameter)
        if unused := [pattern for pattern in options if not groups[pattern]]:
            if any(fnmatchcase(name, unused[0]) for own in names.values() for name in own):
                raise ValueError(
                    f"parameter_groups: earlier patterns take all that {unused[0]!r} fits: put {unused[0]!r} first"
                )
            raise ValueError(f"parameter_groups: no parameter fits {unused[0]!r}; there are {', '.join(named)}")
        return [{"params": own, **options.get(pattern, {})} for pattern, own in groups.items() if own]

    # ---------------------------------------------------------------- from torch.nn's module and back
    _OWN = ("cell", "_computation", *_OF_STACKS, "reset_after")  # attributes that torch.nn's modules do not have

    def _take_over(self):
        """Complete a torch.nn module that `convert` has just made one of this class."""
        self.cell = cells.get(self.mode.lower())
        vars(self).update({name: _BESIDES[name] for name in _OF_STACKS})
        self._start_anew()

    def _is_torchs(self):
        """Return whether torch.nn has a module that computes the same."""
        besides = ("reset_after", "input_mode", "split", *CELL_OPTIONS)  # the others change no result
        usual = all(getattr(self, name, _BESIDES[name]) == _BESIDES[name] for name in besides)
        return usual and isinstance(self.bias, bool) and isinstance(self.hidden_size, int)

    _flat_weights = property(
        lambda self: [getattr(self, name, None) for name in self._flat_weights_names],
        doc="The parameters in the order of all_weights, as code written for torch.nn's modules reads them.",
    )

    def _init_flat_weights(self):  # RNNBase calls it after `.to()`, `.double()`, `.cuda()`, ...
        self._start_anew()

    def _update_flat_weights(self):  # RNNBase updates its list of the parameters; here `_flat_weights` looks them up
        pass

    def _replicate_for_data_parallel(self):
        return Module._replicate_for_data_parallel(self)

    def extra_repr(self) -> str:
        besides = {name: getattr(self, name, usual) for name, usual in _BESIDES.items()}
        own = [f"{name}={value!r}" for name, value in besides.items() if value != _BESIDES[name]]
        first = [self.cell.name] if type(self) in (Recurrent, RecurrentCell) else []
        return ", ".join([*first, super().extra_repr(), *own])

    # ---------------------------------------------------------------- the call
    def forward(
        self, input: torch.Tensor | PackedSequence, hx: Any = None, lengths: Any = None, resets: Any = None,
        padding_value: float = NO_PADDING_VALUE, output_states: bool = False,
        side: Mapping[str, torch.Tensor] | None = None,
    ) -> Results:  # fmt: skip
        """Compute the outputs of all steps and the final state, as torch.nn's modules do.

        Args:
            input: x, (T, B, I), or (B, T, I) with `batch_first`; (T, I) for one sequence; or a `PackedSequence`.
            hx: the initial state: h, or (h, c) for an LSTM, or the tuple of a cell's states. Each has shape
                (L*D, B, H), or (L*D, H) for one sequence. A projected h has P features. If layers' sizes differ, each
                is a list of one (D, B, H) per layer. None is zero.
            lengths: number of steps of each sequence, (B,) ints from 0 to T in any order; a list, or a tensor on any
                device. The second direction starts at a sequence's own last step; x beyond it is never used.
            resets: bools (T, B), or (B, T) with `batch_first` unless x is packed. True restarts sequence b from a state
                of zeros at step t.
            padding_value: value of y beyond a sequence's length.
            output_states: also return the last layer's cell states of every step.
            side: dict from the name of each side input (`numbarnn.side`) to its tensor, with the input's axes. None:
                the last columns of the input are the side inputs.

        Returns:
            output: y, (T, B, D*H), or in the form of the input.
            state: the state after each sequence's last step, in the form of hx.
            states: only with `output_states`. The tuple of the last layer's cell states at every step (c of an LSTM),
                shaped like y but with H features.

        Raises:
            RuntimeError, ValueError, TypeError: an argument does not fit, as in torch.nn.
        """
        if side is not None:
            if isinstance(input, PackedSequence):
                raise TypeError("side must be None with a packed input, whose last columns are the side inputs")
            input = torch.cat([input, *side_by_name(self.cell, side).values()], dim=-1)
        drop, form = self._drop(), None  # first: it may replace the computation
        if lengths is None and resets is None and not output_states:
            form, results = self._computation.again(self, input, hx, self.batch_first)
            if results:
                return results
        if isinstance(input, torch.fx.Proxy):
            options = {"padding_value": padding_value, "output_states": output_states}
            return self._as_leaf(input, hx, lengths=lengths, resets=resets, **options)
        if output_states:
            keeps_states(self._computation.stack, flag(output_states, "output_states"))
        settings = CallSettings(lengths, resets, padding_value, output_states, self.training)
        if isinstance(input, PackedSequence):
            if torch.compiler.is_compiling():  # sizes are in tensors: the graph ends here, as with torch.nn's modules
                return torch.compiler.disable(self._packed)(input, hx, settings)
            return self._packed(input, hx, settings)
        if input.is_nested:
            checks.nested(input, self.batch_first)
        if input.dim() != 3:
            return self._of_one_sequence(input, hx, settings)
        if hx is not None:
            hx = checks.state_of(self.cell.states, hx, batched=True)
        return self._computation.run(self, input, hx, settings, self.batch_first, drop, form)

    def _of_one_sequence(self, input, hx, settings):
        """Run one sequence x (T, I) as a batch of one."""
        if input.dim() != 2:
            raise ValueError(f"{type(self).__name__}: Expected input to be 2D or 3D, got {input.dim()}D instead")
        axis = 0 if self.batch_first else 1
        if hx is not None:
            hx = checks.state_of(self.cell.states, hx, batched=False)
        if settings.resets is not None:
            settings = settings._replace(resets=torch.as_tensor(settings.resets).unsqueeze(axis))
        x = input.unsqueeze(axis)
        output, state, *more = self._computation.run(self, x, hx, settings, self.batch_first, self._drop())
        output, *more = with_each([output, *more], lambda value: value.squeeze(axis))
        return output, with_each(state, lambda one: one.squeeze(1)), *more

    def _packed(self, sequence, hx, settings):
        """Run a `PackedSequence`: y is packed like x, and states have the order before packing."""
        data, batch_sizes, order, ranks = sequence
        if settings.lengths is not None:
            raise ValueError("lengths must be None with a packed input, which has its own")
        if data.dim() != 2:
            raise RuntimeError(f"input must have 2 dimensions, got {data.dim()}")
        steps, drop = len(batch_sizes), self._drop()
        x, lengths = _VF._pad_packed_sequence(data, batch_sizes, False, 0.0, steps)  # (T, B, I), the longest first

        def pack(padded):
            return _VF._pack_padded_sequence(padded, lengths, False)[0]

        def drop_packed(y):  # torch draws for packed elements, in their order
            return _VF._pad_packed_sequence(drop(pack(y)), batch_sizes, False, 0.0, steps)[0]

        if hx is not None:
            hx = checks.state_of(self.cell.states, hx, batched=True)
            if order is not None:
                hx = with_each(hx, lambda one: one.index_select(1, order))
        settings = settings._replace(lengths=lengths)
        if settings.resets is not None and order is not None:
            settings = settings._replace(resets=torch.as_tensor(settings.resets)[:, order])
        y, state, *more = self._computation.run(self, x, hx, settings, drop=drop and drop_packed)
        if ranks is not None:
            state = with_each(state, lambda one: one.index_select(1, ranks))
        y, *more = with_each([y, *more], lambda padded: PackedSequence(pack(padded), batch_sizes, order, ranks))
        return y, state, *more

    def _drop(self):
        """Return the dropout function between layers; None without dropout, and where the network draws itself."""
        if not (self.dropout and self.training and self.num_layers > 1):
            return None
        if not self._computation.by_layer and self._computation.dropout != self.dropout:
            self._start_anew()  # a caller has changed self.dropout
        return partial(torch.nn.functional.dropout, p=self.dropout) if self._computation.by_layer else None


class RecurrentCell(Recurrent):
    """Run one step of one layer of any cell, with the interface of `torch.nn.LSTMCell` and the cell as first argument.

    Args:
        cell, input_size, hidden_size, bias, proj_size, device, dtype: see `Recurrent`.
        more: `Recurrent`'s options `cell_clip`, `clip_propagate_nan`, `input_mode`, `schedule`, `allow_tf32`, `split`.

    Example:
        >>> import numbarnn as nr
        >>> step = RecurrentCell(nr.cells.library.slstm, 8, 16)
        >>> state = None
        >>> for x in torch.zeros(5, 3, 8):  # (T, B, I)
        ...     state = step(x, state)
        >>> len(state), state[0].shape  # h, c, n, m
        (4, torch.Size([3, 16]))
    """

    def __init__(
        self, cell: Cell, input_size: int, hidden_size: int, bias: Bias = True, proj_size: int = 0, device: Any = None,
        dtype: torch.dtype | None = None, **more: Any,
    ) -> None:  # fmt: skip
        others = (*CELL_OPTIONS, "input_mode", "schedule", "allow_tf32", "split")
        if unknown := [name for name in more if name not in others]:
            raise TypeError(
                f"RecurrentCell has no {unknown[0]}: it runs one step of one layer; its options are {others}"
            )
        super().__init__(
            cell, input_size, hidden_size, bias=bias, proj_size=proj_size, device=device, dtype=dtype, **more
        )

    def forward(self, input: torch.Tensor, hx: Any = None) -> Any:
        """Compute the state after one step.

        Args:
            input: x, (B, I), or (I,) for one sequence.
            hx: the state before the step: h, or the tuple of a cell's states, each (B, H) or (H,). None is zero.

        Returns:
            h, or the tuple of all states, in the form of hx.

        Raises:
            ValueError, RuntimeError, TypeError: an argument does not fit.
        """
        x, state = checks.single_step(type(self).__name__, self.cell.states, input, hx)
        hx = state if state is None or len(state) > 1 else state[0]
        _, state = super().forward(x, hx)
        return with_each(state, lambda one: one[0] if input.dim() == 2 else one[0, 0])


class LSTM(Recurrent):
    """Apply LSTM layers to sequences: a drop-in for `torch.nn.LSTM`. Equations: `numbarnn.cells.lstm`.

    Arguments and their order, attributes, parameter names, initial values, inputs, results and errors are torch.nn's.
    The other arguments are `Recurrent`'s.

    Example:
        >>> lstm = LSTM(8, 16, num_layers=2, batch_first=True)
        >>> y, (h, c) = lstm(torch.zeros(3, 5, 8))  # (B, T, I)
        >>> y.shape, h.shape
        (torch.Size([3, 5, 16]), torch.Size([2, 3, 16]))
    """

    def __init__(
        self, input_size: int, hidden_size: Sizes, num_layers: int = 1, bias: Bias = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, device: Any = None,
        dtype: torch.dtype | None = None, *, cell_clip: float | tuple[float, float] | None = None,
        clip_propagate_nan: bool = True, **more: Unpack[OfAllStacks],
    ) -> None:  # fmt: skip
        arguments = input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size
        clip = {"cell_clip": cell_clip, "clip_propagate_nan": clip_propagate_nan}
        super().__init__("lstm", *arguments, device, dtype, **clip, **more)

    # Methods that torch.nn.LSTM has and RNNBase lacks, for code that calls them.
    get_expected_cell_size = torch.nn.LSTM.get_expected_cell_size
    check_forward_args = torch.nn.LSTM.check_forward_args
    permute_hidden = torch.nn.LSTM.permute_hidden


class GRU(Recurrent):
    """Apply GRU layers to sequences: a drop-in for `torch.nn.GRU`. Equations: `numbarnn.cells.gru`.

    Arguments are torch.nn's, and `Recurrent`'s by keyword.

    Args:
        reset_after: apply the reset gate after the product R_n h, as in torch.nn. False applies it before.
    """

    reset_after = True

    def __init__(
        self, input_size: int, hidden_size: Sizes, num_layers: int = 1, bias: Bias = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, device: Any = None, dtype: torch.dtype | None = None, *,
        reset_after: bool = True, **more: Unpack[OfAllStacks],
    ) -> None:  # fmt: skip
        _refuse_projection(more)
        arguments = input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        cell = "gru" if reset_after else "gru_reset_before"
        super().__init__(cell, *arguments, device=device, dtype=dtype, **more)
        self.reset_after = reset_after


class RNN(Recurrent):
    """Apply vanilla RNN layers to sequences: a drop-in for `torch.nn.RNN`. Equations: `numbarnn.cells.rnn`.

    Arguments are torch.nn's, and `Recurrent`'s by keyword.

    Args:
        nonlinearity: "tanh" or "relu"; the fourth argument, as in torch.nn.
    """

    def __init__(
        self, input_size: int, hidden_size: Sizes, num_layers: int = 1,
        nonlinearity: Literal["tanh", "relu"] = "tanh", bias: Bias = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, device: Any = None, dtype: torch.dtype | None = None,
        **more: Unpack[OfAllStacks],
    ) -> None:  # fmt: skip
        _refuse_projection(more)
        checks.nonlinearity(nonlinearity)
        arguments = input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        super().__init__(f"rnn_{nonlinearity}", *arguments, device=device, dtype=dtype, **more)
        self.nonlinearity = nonlinearity


def _refuse_projection(options):
    if "proj_size" in options:
        raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")


def _show_arguments():
    """Let `help` show the arguments of LSTM, GRU and RNN in place of `**more`."""
    of_any = inspect.signature(Recurrent.__init__).parameters.values()
    for module in (LSTM, GRU, RNN):
        signature = inspect.signature(module.__init__)
        own = [one for one in signature.parameters.values() if one.name != "more"]
        others = [one for one in of_any if one.kind is one.KEYWORD_ONLY]
        module.__init__.__signature__ = signature.replace(parameters=[*own, *others])


_show_arguments()
