"""PyTorch modules for one step of one layer: drop-in LSTMCell, GRUCell and RNNCell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import _VF
from torch.nn import Module, Parameter

from numbarnn.programs.states import with_each
from numbarnn.torch import checks
from numbarnn.torch.computation import Computation, Computed
from numbarnn.torch.core import CallSettings

if TYPE_CHECKING:
    from numbarnn.common.typing import Bias

_NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class CellBase(Computed, torch.nn.RNNCellBase):
    """Run one step of one layer: the base of `LSTMCell`, `GRUCell` and `RNNCell`.

    Parameters are `weight_ih`, `weight_hh`, `bias_ih` and `bias_hh`, views of one flat buffer; see
    `flatten_parameters`.

    Args:
        input_size: number of features of x (I).
        hidden_size: number of units (H).
        bias: True, False, "double", "none", "input" or "recurrent".
        device, dtype: device and dtype of the parameters.

    Raises:
        TypeError, ValueError: an argument is wrong, as in torch.nn.
    """

    cell: str  # its name in `numbarnn.cells.CELLS`

    def __init__(
        self, input_size: int, hidden_size: int, bias: Bias = True, device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        Module.__init__(self)  # not RNNCellBase's, which makes parameters outside of a flat buffer
        checks.size_types(input_size, hidden_size)
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        self._set_up()
        rows = self._computation.stack.cell.num_gates * hidden_size
        ends = {"weight_ih": (input_size,), "weight_hh": (hidden_size,)}
        for name in _NAMES:
            made = torch.empty(rows, *ends.get(name, ()), device=device, dtype=dtype)
            self.register_parameter(name, Parameter(made) if name in self._computation.shapes else None)
        self.reset_parameters()
        self.flatten_parameters()

    def _set_up(self):
        sizes = {name: max(getattr(self, name), 1) for name in ("input_size", "hidden_size")}
        bias = checks.bias_of_cell(self.bias)
        self._computation = Computation({"cell": self.cell, "bias": bias, **sizes}, suffix="_l0")

    _OWN = ("_computation",)  # attributes that torch.nn's cells do not have

    def _take_over(self):
        """Complete a torch.nn cell that `convert` has just made one of this class."""
        self._start_anew()

    def _is_torchs(self):
        """Return whether torch.nn has a cell that computes the same."""
        return isinstance(self.bias, bool) or self.bias in ("tanh", "relu")

    def _apply(self, fn, recurse=True):
        super()._apply(fn, recurse)
        self.flatten_parameters()
        return self

    def forward(self, input: torch.Tensor, hx: Any = None) -> Any:
        """Compute the state after one step.

        Args:
            input: x, (B, I), or (I,) for one sequence.
            hx: the state before the step: h, or (h, c) for an LSTM, each (B, H) or (H,). None is zero.

        Returns:
            h, or (h, c) for an LSTM, in the shape of hx.

        Raises:
            ValueError, RuntimeError, TypeError: an argument does not fit, as in torch.nn.
        """
        if isinstance(input, torch.fx.Proxy):
            return self._as_leaf(input, hx)
        kind, names = type(self).__name__, self._computation.stack.cell.states
        x, state = checks.single_step(kind, names, input, hx)
        if x.shape[2] != self.input_size:
            raise RuntimeError(f"input has inconsistent input_size: got {x.shape[2]} expected {self.input_size}")
        for number, one in enumerate(state or ()):
            if one.shape[2] != self.hidden_size:
                raise RuntimeError(
                    f"hidden{number} has inconsistent hidden_size: got {one.shape[2]}, expected {self.hidden_size}"
                )
        weight = self._parameters.get("weight_ih")
        if weight is not None and x.dtype is not weight.dtype and not torch.is_autocast_enabled(x.device.type):
            raise RuntimeError(
                f"{kind}: input and weights must have the same dtype, but are {x.dtype} and {weight.dtype}: convert "
                f"the input, input.to({weight.dtype}), or the module, .to({x.dtype})"
            )
        if not (self.input_size and self.hidden_size):
            state = self._of_size_0(x, state)
        else:
            hx = state if state is None or len(names) > 1 else state[0]
            form, results = self._computation.again(self, x, hx, False)
            _, state = results or self._computation.run(self, x, state, CallSettings(), form=form)
        return with_each(state, lambda one: one[0] if input.dim() == 2 else one[0, 0])

    def _of_size_0(self, x, state):
        """Compute a step with I or H of 0, which engines refuse, by torch.nn's function. x: (1, B, I)."""
        weights = [self._parameters[name] for name in _NAMES]
        if weights[2:] != [None, None]:  # torch.nn's function takes two biases or none
            weights[2:] = [weights[0].new_zeros(len(weights[0])) if one is None else one for one in weights[2:]]
        zero = [x.new_zeros(x.shape[1], self.hidden_size)] * len(self._computation.stack.cell.states)
        state = zero if state is None else [one[0] for one in state]
        state = getattr(_VF, f"{self.cell}_cell")(x[0], state if len(state) > 1 else state[0], *weights)
        return with_each(state, lambda one: one[None])


class LSTMCell(CellBase):
    """Run one step of an LSTM: a drop-in for `torch.nn.LSTMCell`. The state is (h, c)."""

    cell = "lstm"


class GRUCell(CellBase):
    """Run one step of a GRU: a drop-in for `torch.nn.GRUCell`. The state is h."""

    cell = "gru"


class RNNCell(CellBase):
    """Run one step of a vanilla RNN: a drop-in for `torch.nn.RNNCell`. The state is h.

    Args:
        nonlinearity: "tanh" or "relu".
    """

    cell = property(lambda self: f"rnn_{self.nonlinearity}")

    def __init__(
        self, input_size: int, hidden_size: int, bias: Bias = True, nonlinearity: Literal["tanh", "relu"] = "tanh",
        device: Any = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        checks.nonlinearity(nonlinearity)
        self.nonlinearity = nonlinearity
        super().__init__(input_size, hidden_size, bias, device, dtype)
