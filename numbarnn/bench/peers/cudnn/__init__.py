"""Call cuDNN's recurrent networks through ctypes: NumPy arrays in, NumPy arrays out.

This needs CuPy, an NVIDIA driver and cuDNN 9 (pip install nvidia-cudnn-cu12, or -cu13).

    rnn = cudnn.Rnn("lstm", input_size, hidden_size, num_layers)
    call = rnn.call(x, (hx, cx), weights, gradients=(dy, dhy, dcy))  # weights: a dict with PyTorch's names
    found = call.results()                                           # y, hy, cy, dx, dhx, dcx, dw
    dweights = rnn.split(found["dw"])
    call.choose(*call.functions)                                     # then call.run() is what a benchmark times
"""

from .descriptors import Options
from .library import CudnnError, Session, default_session, why_not
from .rnn import Rnn

__all__ = ["CudnnError", "Options", "Rnn", "Session", "default_session", "why_not"]
