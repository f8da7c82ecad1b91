"""The three public layers. Arguments and defaults are those of torch.nn."""

from numbarnn.layers.recurrent import Recurrent

_ARGUMENTS = """

    Args:
        input_size: I.
        hidden_size: H of all layers, or a list with one int per layer.
        num_layers: L, where hidden_size is one int (default 1).{more}
        bias: whether there are biases (two per layer and direction, as in cuDNN).
        batch_first: x and y are (B, T, ...) instead of (T, B, ...); states are not affected.
        dropout: probability of dropping an element of a layer's output, except the last's, in training.
        bidirectional: a second direction runs backward in time; outputs are concatenated.
        dtype: "float32" or "float64"; on "cuda" and "sim" also "float16" or "bfloat16", for what is stored: arithmetic,
            c and the gradients of states are float32 then.
        device: "auto" (a GPU where there is one, else the CPU), "cpu", "cuda", "cuda:N", "sim" (simulator).
        schedule: which task runs when: "stepwise", "wavefront", "persistent" (see `numbarnn.schedules`), or "auto",
            which takes one of them; `explain` says which and why.
        allow_tf32: on a GPU, let tensor cores multiply float32 numbers rounded to TF32 (10 bits of mantissa): faster,
            coarser. Without effect on other dtypes and on the CPU.
        seed: of the initial parameters and the dropout masks; None takes a new one.

    Raises:
        ValueError, TypeError: an argument is out of range or of the wrong type.
        RuntimeError: the device cannot be used; the message says why. A schedule that cannot run a problem raises it
            when the layer is called, with the numbers.
"""


class LSTM(Recurrent):
    __doc__ = "Long short-term memory; equations in `numbarnn.cells.lstm`. State: (h, c)." + _ARGUMENTS.format(more="")
    _cell = "lstm"


class GRU(Recurrent):
    __doc__ = "Gated recurrent unit, cuDNN's; equations in `numbarnn.cells.gru`. State: h." + _ARGUMENTS.format(more="")
    _cell = "gru"


class RNN(Recurrent):
    __doc__ = "The vanilla RNN; equations in `numbarnn.cells.rnn`. State: h." + _ARGUMENTS.format(
        more='\n        nonlinearity: "tanh" or "relu".'
    )

    def __init__(self, input_size, hidden_size, num_layers=None, nonlinearity="tanh", bias=True, *args, **options):
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity must be 'tanh' or 'relu', not {nonlinearity!r}")
        self._cell = f"rnn_{nonlinearity}"
        super().__init__(input_size, hidden_size, num_layers, bias, *args, **options)
