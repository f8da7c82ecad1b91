"""LSTM, GRU and RNN, with the arguments and defaults of torch.nn. Calls and parameters: see `recurrent`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Literal, TypeVar, overload

from numbarnn.cells import Cell, get
from numbarnn.cells.definition import CELL_OPTIONS
from numbarnn.common.typing import Options
from numbarnn.layers import checks
from numbarnn.layers.recurrent import Recurrent
from numbarnn.layers.stack import Stack

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from numbarnn.common.typing import Bias, Sizes

_ARGUMENTS = """

    Args:{first}
        input_size: number of features of x at each step (I).
        hidden_size: number of units of each layer (H), or a list with one number per layer.
        num_layers: number of layers (L, default 1). Leave it out if hidden_size is a list.{more}
        bias: True or "double" gives each layer and direction two biases, b_w and b_r, as in cuDNN and PyTorch. "input"
            keeps b_w only, "recurrent" b_r only. False or "none" has no bias.
        batch_first: use (B, T, ...) instead of (T, B, ...) for x and y. States keep their shape.
        dropout: probability of dropping an element of a layer's output in training. The last layer drops none.
        bidirectional: add a second direction that runs backward in time. y concatenates both.{options}
        input_mode: what layer 0 does with x. "linear" multiplies it by W. "skip" adds x itself to each gate, so
            input_size must be hidden_size. "given": you pass the product W x as x, ordered by direction, then gate.
            input_size is then D*G*H, for D directions and G gates.
        dtype: "float32", "float64", "float16" or "bfloat16". The last two store arrays in 16 bits; arithmetic, c and
            the gradients of states use float32.
        device: "auto" (a GPU if there is one, else the CPU), "cpu", "cuda", "cuda:N" or "sim" (simulator).
        schedule: "stepwise", "wavefront", "persistent", or "auto", which picks one; `explain` says which and why.
        allow_tf32: on a GPU, round the operands of float32 products to TF32 (10 bits of mantissa): faster, less
            accurate. "3x" adds up three such products, which gives errors like float32's. It needs schedule
            "persistent", and an infinite operand may give NaN. GPUs below compute capability 8.0 ignore True and "3x".
        checkpoint_every: an int k. Training calls of more than k steps then keep only every k-th step's states, and
            backward recomputes the rest (Chen et al. 2016, arXiv:1604.06174). This saves memory. None keeps everything.
        seed: seed of the initial parameters and of random numbers in training. None draws a new seed.

    Raises:
        ValueError, TypeError: an argument is out of range or of the wrong type.
        RuntimeError: the device cannot be used or, in a call, the schedule does not support these sizes or options.

    Example:
{example}"""

_EXAMPLE = """        >>> {name} = numbarnn.{kind}(8, 16, num_layers=2, device="cpu")
        >>> x = numpy.zeros((5, 3, 8), "float32")  # (T, B, I)
        >>> y, {state}, tape = {name}.forward(x)
        >>> y.shape, h.shape
        ((5, 3, 16), (2, 3, 16))
        >>> grads = {name}.backward(tape, dy=numpy.ones_like(y))
        >>> grads.params["weight_hh_l0"].shape
        ({rows}, 16)
"""

_RNN_EXAMPLE = """        >>> rnn = numbarnn.RNN(8, 16, nonlinearity="relu", device="cpu")
        >>> y, h = rnn(numpy.zeros((5, 3, 8), "float32"))  # (T, B, I)
        >>> lem = numbarnn.RNN(numbarnn.cells.library.lem, 8, 16, device="cpu")
        >>> y, (h, z) = lem(numpy.zeros((5, 3, 8), "float32"))
        >>> y.shape, z.shape
        ((5, 3, 16), (1, 3, 16))
"""

_PROJECTION = """
        proj_size: number of features of the projection h = W_hr m of each output m (P < H). 0 has no projection."""
_OF_CELL = """
        proj_size: size P of h for a cell that projects its output m: h = W_hr m. Default: H. Schedule "persistent"
            needs P <= H."""
_CLIP = """
        cell_clip: limits of c: a number, or a pair (lclip, rclip) (cudnnRNNSetClip). As in cuDNN 9.19, each step limits
            c where it reads it, and no gradient passes where it did; c itself may leave the limits. None does not clip.
        clip_propagate_nan: keep a NaN in c; otherwise it is read as lclip (CUDNN_NOT_PROPAGATE_NAN)."""

_RESET_AFTER = """
        reset_after: apply the reset gate after the product R_n h, as in cuDNN and PyTorch. False applies it before, as
            in Cho et al. (Keras' reset_after=False, ONNX' linear_before_reset=0); this takes two products per step."""


_RNN = """Apply layers of a vanilla RNN, or of any cell, to sequences.

    `RNN(input_size, hidden_size, ...)` is the vanilla RNN (equations: `numbarnn.cells.rnn`); its state is h.
    `RNN(cell, input_size, hidden_size, ...)` runs a `Cell`; its state is h, or the tuple of the cell's states, h first.

    Parameters have PyTorch's names where PyTorch has one. weight_ih_l0 stacks the matrices that multiply x.
    weight_hh_l0 stacks those that multiply anything else. bias_ih_l0 and bias_hh_l0 are the biases, weight_hr_l0 is the
    projection. All other parameters keep their names from the equations. `layer.named` holds every parameter under its
    name in the equations, such as "R.i".

    A cell may split its matrices into n heads (`numbarnn.heads`). A unit then reads h only from the units of its own
    head, and R has shape (A*H, H/n), where A is the number of gates that read h."""


_Make = TypeVar("_Make", bound=Callable[..., None])


def _known_arguments(make: _Make) -> _Make:
    """Let an `__init__` suggest the right name for an unknown argument, and let `help` show what `**options` takes."""
    known = _names(make) | _names(Recurrent.__init__) | (_names(Stack.__init__) | set(CELL_OPTIONS)) - {"cell"}

    @wraps(make)
    def checked(self, *arguments, **options):
        arguments = _with_cell(self, arguments, options)
        is_vanilla = isinstance(self, RNN) and not (arguments and isinstance(arguments[0], Cell))
        names = known | ({"nonlinearity"} if is_vanilla else set())
        for name in options:
            if name not in names:
                near = get_close_matches(name, names, 1)
                hint = f": do you mean {near[0]}?" if near else ""
                raise TypeError(f"{type(self).__name__} has no argument {name!r}{hint}")
        make(self, *arguments, **options)

    checked.__signature__ = _signature(make)
    return checked


def _with_cell(layer, arguments, options):
    """Return the positional arguments, with `cell=` moved to their front. Raise TypeError for a wrong cell."""
    if "cell" in options and isinstance(layer, RNN):
        return get(options.pop("cell")), *arguments
    if arguments and isinstance(arguments[0], Cell):
        if not isinstance(layer, RNN):
            kind, name = type(layer).__name__, arguments[0].name
            raise TypeError(f"{kind} takes no cell, got {name}: write numbarnn.RNN({name}, ...)")
    elif arguments and inspect.isfunction(arguments[0]):
        get(arguments[0])  # raises, and says how a function becomes a cell
    return arguments


def _signature(make):
    """Return the signature of an `__init__`, with the keywords of `Options` instead of `**options`."""
    of_stack, signature = inspect.signature(Stack.__init__).parameters, inspect.signature(make)
    parts = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    for name, kind in Options.__annotations__.items():
        default = None if name == "seed" else of_stack[name].default
        parts.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    return signature.replace(parameters=parts)


def _names(function):
    """Return the names of a method's keyword arguments."""
    _, *takes = inspect.signature(function).parameters.values()
    return {one.name for one in takes if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)}


class LSTM(Recurrent):
    __doc__ = "Apply LSTM layers to sequences. State: (h, c). Equations: `numbarnn.cells.lstm`." + _ARGUMENTS.format(
        first="", more="", options=_PROJECTION + _CLIP,
        example=_EXAMPLE.format(kind="LSTM", name="lstm", state="(h, c)", rows=64),
    )  # fmt: skip
    _cell = "lstm"

    @_known_arguments
    def __init__(
        self, input_size: int, hidden_size: Sizes, num_layers: int | None = None, bias: Bias = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, proj_size: int = 0, *,
        cell_clip: float | tuple[float, float] | None = None, clip_propagate_nan: bool = True,
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        arguments = input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional
        clip = {"cell_clip": cell_clip, "clip_propagate_nan": clip_propagate_nan}
        super().__init__(*arguments, proj_size=proj_size, **clip, **options)


class GRU(Recurrent):
    __doc__ = "Apply GRU layers to sequences. State: h. Equations: `numbarnn.cells.gru`." + _ARGUMENTS.format(
        first="", more="", options=_RESET_AFTER, example=_EXAMPLE.format(kind="GRU", name="gru", state="h", rows=48)
    )

    @_known_arguments
    def __init__(
        self, input_size: int, hidden_size: Sizes, num_layers: int | None = None, bias: Bias = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, *, reset_after: bool = True,
        **options: Unpack[Options],
    ) -> None:  # fmt: skip
        self._cell = "gru" if checks.flag(reset_after, "reset_after") else "gru_reset_before"
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, **options)

    @property
    def reset_after(self) -> bool:
        """True if the reset gate is applied after the product R_n h, as in cuDNN and PyTorch."""
        return self._cell == "gru"


class RNN(Recurrent):
    __doc__ = _RNN + _ARGUMENTS.format(
        first="\n        cell: the `Cell` to run, such as one made by `numbarnn.cell`. Pass it first or as `cell=`.",
        more='\n        nonlinearity: "tanh" or "relu", of the vanilla RNN.', options=_OF_CELL, example=_RNN_EXAMPLE,
    )  # fmt: skip

    @overload
    def __init__(
        self, input_size: int, hidden_size: Sizes, num_layers: int | None = None,
        nonlinearity: Literal["tanh", "relu"] = "tanh", bias: Bias = True, batch_first: bool = False,
        dropout: float = 0.0, bidirectional: bool = False, **options: Unpack[Options],
    ) -> None: ...  # fmt: skip

    @overload
    def __init__(
        self, cell: Cell, input_size: int, hidden_size: Sizes, num_layers: int | None = None, bias: Bias = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False, *, proj_size: int = 0,
        **options: Unpack[Options],
    ) -> None: ...  # fmt: skip

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

    # `help` shows the vanilla RNN's arguments; a cell may stand before them.
    __init__.__signature__ = _signature(_make_vanilla)
