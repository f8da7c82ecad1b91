"""What people write, for mypy: `tests/test_typing.py` runs it with --strict over this file, which never runs itself."""

from typing import Any, assert_type

import numpy as np

import numbarnn as nr
import numbarnn.torch as nrt
from numbarnn import functional

x: np.ndarray[Any, Any] = np.zeros((5, 2, 8), "float32")

lstm = nr.LSTM(8, [16, 4], dropout=0.2, cell_clip=3.0, dtype="float64", device="cpu", seed=0)
gru = nr.GRU(8, 16, 2, bias="input", reset_after=False)
vanilla = nr.RNN(8, 16, nonlinearity="relu", schedule="wavefront")
assert_type(lstm, nr.LSTM)

y, (hy, cy) = lstm(x)
y, state, tape = lstm.forward(x, (hy, cy), lengths=[5, 3], padding_value=0.0)
grads = lstm.backward(tape, dy=y, need=("x",), retain=True)
assert_type(grads, nr.Gradients)
assert_type(grads.params, dict[str, Any])
for name, parameter in lstm.parameters.items():
    parameter -= 0.01 * grads.params[name]
lstm.named["R.f"][...] = 0.0
step = lstm.stepper(batch=1)
one: np.ndarray[Any, Any] = step(x[0])
lstm.load_state_dict(lstm.state_dict(named=True))
assert_type(lstm.explain(x.shape), str)
assert_type(lstm.check(), None)
packed = nr.pack_padded_sequence(x, [3, 5])
assert_type(packed, nr.PackedSequence)
again, lengths = nr.pad_packed_sequence(packed)
nr.set_num_threads(nr.get_num_threads())


@nr.cell
def coupled(x: Any, h: Any, c: Any, p: Any) -> Any:
    i = nr.sigmoid(p.W.i @ x + p.R.i @ h + p.peep * c + p.b.i)
    return nr.tanh(nr.where(i > 0.5, c, nr.clip(c, -1.0, 1.0))), nr.dropout(nr.stop_gradient(c), 0.1)


@nr.cell(save="minimal")
def other(x: Any, h: Any, p: Any) -> Any:
    return nr.layer_norm(nr.heads(p.R, 4).a @ h, eps=1e-3)


assert_type(nr.gradcheck(coupled, 4, 4).ok, bool)
assert_type(nr.show(other), str)
own = nr.RNN(coupled, 8, 16, num_layers=2, device="cpu")
own(x)

converted = nr.convert.from_torch({"weight_ih_l0": x}, prefix="")
nr.convert.to_onnx(lstm, "lstm.onnx", lengths=True)
nr.convert.save_safetensors(lstm, "lstm.safetensors")
assert_type(nr.convert.to_torch(lstm)["weight_ih_l0"], np.ndarray[Any, Any])

rnn = functional.Descriptor("lstm", input_size=8, hidden_size=16)
w = rnn.zeros_weights()
y, hy, cy, reserve = functional.forward_training(rnn, x, w=w)
functional.backward_weights(rnn, reserve, w)

module = nrt.LSTM(8, 16, num_layers=2, batch_first=True)
assert_type(module, nrt.LSTM)
nrt.LSTM(8, 16, 2, True, False, 0.1, True, 4, "cpu", None, cell_clip=(-1.0, 1.0), schedule="stepwise")
nrt.GRU(8, [16, 4], 2, False, reset_after=False, allow_tf32=True, input_mode="skip")
nrt.RNN(8, 16, 1, "relu", True, device="cpu", checkpoint_every=8)
network = nrt.Recurrent(coupled, 8, [16, 4], cell_clip=None, allow_tf32="3x")
one_step = nrt.GRUCell(8, 16, bias=False)
assert_type(nrt.convert(module), nrt.LSTM)
