"""The three public layers. Arguments and defaults are those of torch.nn."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Literal, TypeVar, overload

from numbarnn.cells import Cell, get
from numbarnn.common.typing import Options
from numbarnn.layers import checks
from numbarnn.layers.recurrent import Recurrent
from numbarnn.layers.stack import Stack

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from numbarnn.common.typing import Bias, Sizes

_ARGUMENTS = """

    Args:
        input_size: I.
        hidden_size: H of all layers, or a list with one int per layer.
        num_layers: L, where hidden_size is one int (default 1).{more}
        bias: True or "double": two biases per layer and direction, b_w and b_r, as in cuDNN and PyTorch; False or
            "none"; "input": b_w alone (CUDNN_RNN_SINGLE_INP_BIAS); "recurrent": b_r alone (CUDNN_RNN_SINGLE_REC_BIAS).
            That cuDNN's GRU has b_r within the reset gate's product is an assumption
            (`tests/support/cudnn_assumptions.py`).
        batch_first: x and y are (B, T, ...) instead of (T, B, ...); states are not affected.
        dropout: probability of dropping an element of a layer's output, except the last's, in training.
        bidirectional: a second direction runs backward in time; outputs are concatenated.{options}
        input_mode: "linear"; "skip" (CUDNN_SKIP_INPUT): layer 0 has no W, x itself is added to each gate, and I is H;
            "given": layer 0 has no W. x holds the product W x already, gate after gate, directions side by side; I is
            D*G*H.
        dtype: "float32", "float64", or "float16" or "bfloat16". The last two are storage types: arithmetic, c and the
            gradients of states use float32. On the CPU a call's arguments and results have 16 bits, and everything
            within it is float32.
        device: "auto" (a GPU where there is one, else the CPU), "cpu", "cuda", "cuda:N", "sim" (simulator).
        schedule: which task runs when: "stepwise", "wavefront", "persistent" (see `numbarnn.schedules`), or "auto",
            which takes one of them; `explain` says which and why.
        allow_tf32: on a GPU, let tensor cores multiply float32 numbers rounded to TF32 (10 bits of mantissa): faster,
            less accurate. "3x": three such products replace one float32 product, with errors like float32's. This
            applies only where schedule "persistent" runs; everything else behaves as with False. An infinite factor may
            give NaN. Neither value affects other dtypes, the CPU, or GPUs below compute capability 8.0.
        checkpoint_every: k: training calls of more than k steps keep the states at every k-th step only, and backward
            recomputes the steps between them (Chen et al. 2016, arXiv:1604.06174). This stores T / k states and k steps
            instead of T steps, and costs about one more forward pass; `explain` gives both numbers. On the CPU, y and
            the states have the same bits as without checkpoints; gradients agree up to rounding. Very short segments
            cost more time. With two directions, what one layer passes to the next is kept for all steps. None keeps
            everything.
        seed: of the initial parameters and of what training calls draw at random; None takes a new one.

    Raises:
        ValueError, TypeError: an argument is out of range or of the wrong type.
        RuntimeError: the device cannot be used; the message says why. If a schedule cannot run a problem, the
            call of the layer raises this error, and the message gives the sizes.
"""


_PROJECTION = """
        proj_size: P: h is W_hr m, P wide, of the cell's output m; 0 for none. P < H."""
_OF_CELL = """
        proj_size: P, the size of h for a cell that projects its output m: h = W_hr m. P may be any size, by default H;
            schedule "persistent" needs P <= H."""
_CLIP = """
        cell_clip: limits of c, a pair (lclip, rclip) or a number for both (cudnnRNNSetClip); None for none. As in
            cuDNN 9.19, each step limits c where it reads it, and no gradient passes where it did. c itself may leave
            the limits.
        clip_propagate_nan: a NaN in c stays NaN; else it is read as lclip (CUDNN_NOT_PROPAGATE_NAN)."""

_RESET_AFTER = """
        reset_after: the reset gate is applied after the product R_n h, as in cuDNN and PyTorch; else before it, as Cho
            et al. had it (Keras' reset_after=False, ONNX' linear_before_reset=0), which is slower: two products per
            step."""


_RNN = """The vanilla RNN; equations in `numbarnn.cells.rnn`. State: h.

    With a `Cell` as its first argument, or `cell=`, one of it: `RNN(cell, input_size, hidden_size, ...)`. Its state is
    h, or a tuple of the cell's states, h first; its parameters are weight_ih_l0 (the matrices that multiply x, one
    after another), weight_hh_l0 (those that multiply anything else), bias_ih_l0 and bias_hh_l0 (the biases that its
    equations have). A cell that projects its output also has weight_hr_l0 (W_hr). All other parameters keep their
    names: those per unit, those per layer, and matrices within expressions. `cell.rows` lists the contents of each
    parameter, `layer.named` has all by their names in the equations. With n heads R has the shape (A*H, H/n): its rows
    for unit j multiply only the units of head j div (H/n)."""


_Make = TypeVar("_Make", bound=Callable[..., None])


def _known_arguments(make: _Make) -> _Make:
    """`__init__` of a public layer that says of an argument it does not have which it might be; `help` shows those
    behind its `**options` too."""
    known = _names(make) | _names(Recurrent.__init__) | _names(Stack.__init__) - {"cell"}

    @wraps(make)
    def checked(self, *arguments, **options):
        arguments = _with_cell(self, arguments, options)
        names = known | ({"nonlinearity"} if _is_vanilla(self, arguments) else set())
        for name in options:
            if name not in names:
                near = get_close_matches(name, names, 1)
                hint = f": do you mean {near[0]}?" if near else ""
                raise TypeError(f"{type(self).__name__} has no argument {name!r}{hint}")
        make(self, *arguments, **options)

    checked.__signature__ = _signature(inspect.signature(make))
    return checked


def _with_cell(layer, arguments, options):
    """The arguments with a cell that came by its name before them; what cannot be a layer's cell is refused."""
    if "cell" in options and isinstance(layer, RNN):
        return get(options.pop("cell")), *arguments
    if arguments and isinstance(arguments[0], Cell):
        if not isinstance(layer, RNN):
            kind, name = type(layer).__name__, arguments[0].name
            raise TypeError(f"{kind} has equations of its own: a network of cell {name} is numbarnn.RNN({name}, ...)")
    elif arguments and inspect.isfunction(arguments[0]):
        get(arguments[0])  # which says how a function becomes a cell
    return arguments


def _signature(found):
    """The signature of an `__init__`, with what all layers take by keyword (`Options`) in place of `**options`."""
    of_stack = inspect.signature(Stack.__init__).parameters
    parts = [one for one in found.parameters.values() if one.kind is not one.VAR_KEYWORD]
    for name, kind in Options.__annotations__.items():
        default = None if name == "seed" else of_stack[name].default
        parts.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    return found.replace(parameters=parts)


def _names(function):
    """The names that a method takes as keywords."""
    takes = list(inspect.signature(function).parameters.values())[1:]
    return {one.name for one in takes if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}


def _is_vanilla(layer, arguments):
    return isinstance(layer, RNN) and not (arguments and isinstance(arguments[0], Cell))


class LSTM(Recurrent):
    __doc__ = "Long short-term memory; equations in `numbarnn.cells.lstm`. State: (h, c)." + _ARGUMENTS.format(
        more="", options=_PROJECTION + _CLIP
    )
    _cell = "lstm"

    @_known_arguments
    def __init__(
        self,
        input_size: int,
        hidden_size: Sizes,
        num_layers: int | None = None,
        bias: Bias = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        *,
        cell_clip: float | tuple[float, float] | None = None,
        clip_propagate_nan: bool = True,
        **options: Unpack[Options],
    ) -> None:
        arguments = input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        clip = {"cell_clip": cell_clip, "clip_propagate_nan": clip_propagate_nan}
        super().__init__(*arguments, proj_size=proj_size, **clip, **options)


class GRU(Recurrent):
    __doc__ = "Gated recurrent unit; equations in `numbarnn.cells.gru`. State: h." + _ARGUMENTS.format(
        more="", options=_RESET_AFTER
    )

    @_known_arguments
    def __init__(
        self,
        input_size: int,
        hidden_size: Sizes,
        num_layers: int | None = None,
        bias: Bias = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        reset_after: bool = True,
        **options: Unpack[Options],
    ) -> None:
        self._cell = "gru" if checks.flag(reset_after, "reset_after") else "gru_reset_before"
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, **options)

    @property
    def reset_after(self) -> bool:
        """Whether the reset gate is applied after the product R_n h, as in cuDNN and PyTorch."""
        return self._cell == "gru"


class RNN(Recurrent):
    __doc__ = _RNN + _ARGUMENTS.format(more='\n        nonlinearity: "tanh" or "relu".', options=_OF_CELL)

    @overload
    def __init__(
        self,
        input_size: int,
        hidden_size: Sizes,
        num_layers: int | None = None,
        nonlinearity: Literal["tanh", "relu"] = "tanh",
        bias: Bias = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        **options: Unpack[Options],
    ) -> None: ...

    @overload
    def __init__(
        self,
        cell: Cell,
        input_size: int,
        hidden_size: Sizes,
        num_layers: int | None = None,
        bias: Bias = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        *,
        proj_size: int = 0,
        **options: Unpack[Options],
    ) -> None: ...

    @_known_arguments
    def __init__(self, *arguments, **options):
        if arguments and isinstance(arguments[0], Cell):
            self._cell, *arguments = arguments
            super().__init__(*arguments, **options)
        else:
            self._make_vanilla(*arguments, **options)

    def _make_vanilla(
        self, input_size, hidden_size, num_layers=None, nonlinearity="tanh", bias=True, batch_first=False, dropout=0.0,
        bidirectional=False, **options,
    ):  # fmt: skip
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity must be 'tanh' or 'relu', not {nonlinearity!r}")
        self._cell = f"rnn_{nonlinearity}"
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, **options)

    # What `help` shows: the vanilla RNN's, before which a cell may stand.
    __init__.__signature__ = _signature(inspect.signature(_make_vanilla))
