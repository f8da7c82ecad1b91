"""Run PyTorch's recurrent modules with numbarnn: `import numbarnn.torch as nrt`, then `nrt.LSTM(...)`.

LSTM, GRU, RNN, LSTMCell, GRUCell, RNNCell   torch.nn's modules: same arguments, names and results up to rounding
Recurrent(cell, ...)                         the same for any cell, from the library or custom (`@nr.cell`)
convert(model), restore(model)               replace torch.nn's modules in a model, and back
flashrnn(Wx, R, b, ...)                      FlashRNN's function

Differences from torch.nn's modules:

- Modules are instances of `torch.nn.RNNBase` (cells: `torch.nn.RNNCellBase`), not of `torch.nn.LSTM` and so on, because
  TorchDynamo cannot compile those. Code that initializes modules by `isinstance(module, torch.nn.LSTM)` must test for
  `RNNBase`, or run before `convert`.
- On the CPU, float16, bfloat16 and autocast compute in float32. Results are rounded once per call; if there is dropout
  between layers, once per layer. Under autocast on the CPU, results are float32.
- On a GPU, dropout draws other elements than cuDNN does. Random numbers of a cell follow `torch.manual_seed`.
- Parametrized weights are read once per call, in torch.nn more often. With `spectral_norm` in training, which changes
  them at each reading, results differ in the second to fourth digit.
- Second derivatives and forward mode work, but not within programs of `torch.compile`. `torch.func`'s derivatives
  within a compiled function break its graph. Third derivatives need `schedule="loop"`.
- A packed input breaks the graph of `torch.compile`, as in torch.nn. `lengths` does not.
- `torch.jit.script` needs `restore(model)` first. `torch.onnx.export` needs that, or `schedule="loop"`.
- `torch.jit.trace`, `torch.compile` and `torch.export` see a call as one operator. Before you load such a program,
  import `numbarnn.torch` and define its custom cells with the same equations. If x, a state or a parameter requires a
  gradient while tracing, the traced program always keeps what backward needs.
- Devices are CPUs and NVIDIA GPUs. dtypes are float64, float32, float16 and bfloat16.
- Some mistakes raise earlier, or raise where torch.nn is silent: an unknown nonlinearity when a cell is made, an hx
  that is not a tuple. A nonlinearity as a cell's bias (`RNNCell(10, 20, "relu")`) counts as True, with a warning.
- On the CPU, PyTorch's OpenMP threads do the work: as many as `torch.set_num_threads` allows, or fewer by
  `numbarnn.set_num_threads`. numbarnn uses its own threads in three cases: `numbarnn.set_num_threads` asks for more
  than PyTorch has, PyTorch has no OpenMP (outside Linux), or its OpenMP library is older than 2018. PyTorch's threads
  spin for milliseconds after each operation. If other processes keep the CPUs busy, start Python with
  `OMP_WAIT_POLICY=PASSIVE`.
- Parameters are views of one buffer, as in torch.nn on a GPU. Saving a single parameter saves the whole buffer: save
  `parameter.detach().clone()`, or the state_dict. For `safetensors.torch` write `save_file(state_dict)`.
"""

from importlib.util import find_spec

from numbarnn.common import install

if find_spec("torch") is None:
    raise ImportError(f"numbarnn.torch needs PyTorch, which is not installed: {install.command('torch')}")

from numbarnn.torch.cells import GRUCell, LSTMCell, RNNCell
from numbarnn.torch.convert import convert, restore
from numbarnn.torch.flash import flashrnn
from numbarnn.torch.modules import GRU, LSTM, RNN, Recurrent, RecurrentCell

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "GRUCell",
    "LSTMCell",
    "RNNCell",
    "Recurrent",
    "RecurrentCell",
    "convert",
    "flashrnn",
    "restore",
]
