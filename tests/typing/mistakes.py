"""Mistakes that mypy has to find, one per line that says which: see `tests/test_typing.py`."""

import numbarnn as nr
import numbarnn.torch as nrt

lstm = nr.LSTM("8", 16)  # arg-type
nr.LSTM(8, 16, bais=False)  # call-arg
nr.GRU(8, 16, reset_after="no")  # arg-type
nr.RNN(8, 16, nonlinearity="sigmoid")  # call-overload
lstm.forward()  # call-arg
lstm.backward(None)  # arg-type
lstm.explain((1, 2, 3)) + 1  # operator
print(lstm.weigths)  # attr-defined
print(nr.sigmiod)  # attr-defined
nr.set_num_threads("two")  # arg-type
nr.cell(3)  # call-overload
nr.convert.to_torch(3)  # arg-type
nrt.Recurrent("lstm", 8)  # call-arg
nrt.LSTMCell(8, 16, bias="some")  # arg-type
nrt.LSTM("8", 16)  # arg-type
nrt.LSTM(8, 16, bais=False)  # call-arg
nrt.LSTM(8)  # call-arg
nrt.LSTM(8, 16, 1, True, "yes")  # arg-type
nrt.GRU(8, 16, proj_size=4)  # call-arg
nrt.GRU(8, 16, input_mode="skipped")  # arg-type
nrt.RNN(8, 16, 1, "sigmoid")  # arg-type
nrt.RNN(8, 16, cell_clip=1.0)  # call-arg
