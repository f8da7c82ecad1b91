"""PyTorch's recurrent modules, computed by numbarnn: `import numbarnn.torch as nrt`, then `nrt.LSTM(...)`.

LSTM, GRU, RNN, LSTMCell, GRUCell, RNNCell   torch.nn's, by their arguments, names and numbers
Recurrent(cell, ...)                         the same of any cell: the library's, or one's own (`@nr.cell`)
convert(model), restore(model)               torch.nn's modules in a model to these, and back
flashrnn(Wx, R, b, ...)                      FlashRNN's function by its shapes

What differs from torch.nn's modules:

- Modules are instances of `torch.nn.RNNBase` (and cells of `torch.nn.RNNCellBase`), not of `torch.nn.LSTM` and so on:
  TorchDynamo refuses all instances of these. Code that initialises `isinstance(module, torch.nn.LSTM)` has to ask for
  `torch.nn.RNNBase`, or to run before `convert`.
- On the CPU float16 and bfloat16, and autocast, are computed in float32, and results are rounded once (with dropout
  between layers those of each layer). Under autocast on the CPU results are float32.
- On a GPU other elements are dropped out than by cuDNN. A cell's own random numbers follow `torch.manual_seed`.
- Parametrized weights are read once per call, by torch.nn's modules more often. Where every reading changes them, as
  with `spectral_norm` in training, results differ (in the second to fourth digit, both equally near an exact norm).
- Second derivatives (`create_graph=True`) are refused when they are asked for, as are derivatives in forward mode.
  `torch.func`'s derivatives within a function that `torch.compile` reads end its graph.
- A packed input ends the graph of `torch.compile`, as with torch.nn's modules: `lengths` in its place does not.
- `torch.jit.script` cannot read the modules, and `torch.onnx.export` has no operator for them: `restore` goes back to
  torch.nn's. `torch.jit.trace`, `torch.compile` and `torch.export` see a call as one operator; who loads such a
  program imports `numbarnn.torch` before, and defines cells of one's own with the same equations: others are refused.
  A traced one keeps what backward reads, unless no parameter has gradients.
- Devices are CPUs and NVIDIA GPUs; dtypes float64, float32, float16 and bfloat16.
- Some mistakes are refused earlier, or refused that torch.nn lets pass: an unknown nonlinearity when a cell is made, hx
  that is no tuple of a module's states. A nonlinearity in the place of a cell's bias (`RNNCell(10, 20, "relu")`)
  counts as True, as in torch.nn, but with a warning.
- On the CPU PyTorch's threads, those of OpenMP, do numbarnn's work as well: as many as `torch.set_num_threads` allows,
  or fewer that `numbarnn.set_num_threads` says. If that says more, numbarnn has threads of its own; so too with a
  PyTorch that has other threads (not on Linux), or an OpenMP library from before 2018. PyTorch's go on spinning for
  milliseconds after each operation: next to busy processes start Python with `OMP_WAIT_POLICY=PASSIVE`.
- Parameters are views of one buffer, as those of torch.nn's modules on a GPU. A single one that is saved, by
  `torch.save` or by `pickle`, carries the whole buffer: save `parameter.detach().clone()`, or the state_dict, which
  has the buffer once. `safetensors.torch.save_model` wants `save_file(state_dict)`.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from numbarnn.common import install

if find_spec("torch") is None:
    raise ImportError(f"numbarnn.torch needs PyTorch, which is not installed: {install.command('torch')}")

from numbarnn.torch.cells import GRUCell, LSTMCell, RNNCell
from numbarnn.torch.convert import convert, restore
from numbarnn.torch.modules import GRU, LSTM, RNN, Recurrent

if TYPE_CHECKING:
    from numbarnn.torch.flash import flashrnn

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell", "Recurrent", "convert", "flashrnn", "restore"]


def __getattr__(name: str) -> Any:
    """`flashrnn`, when it is asked for: its module needs TorchDynamo, whose import takes as long as PyTorch's own."""
    if name != "flashrnn":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from numbarnn.torch.flash import flashrnn

    globals()[name] = flashrnn
    return flashrnn


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
