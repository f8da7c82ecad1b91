"""cuDNN's recurrent networks called through ctypes: NumPy arrays in, NumPy arrays out. The peer on NVIDIA GPUs.

Every call copies its arrays to the device and back, and waits; for times there is `Rnn.prepare`, which leaves that out
of what runs. Needed are CuPy, an NVIDIA driver and cuDNN 9: pip install nvidia-cudnn-cu12, or -cu13.

    rnn = cudnn.Rnn("lstm", input_size, hidden_size, num_layers)
    y, hy, cy, reserve = rnn.forward(x, hx, cx, weights)       # weights: a dict with PyTorch's names
    dx, dhx, dcx = rnn.backward_data(reserve, dy)
    dweights = rnn.split(rnn.backward_weights(reserve))
"""

from .descriptors import Options
from .library import CudnnError, Session, default_session, why_not
from .rnn import Rnn

__all__ = ["CudnnError", "Options", "Rnn", "Session", "default_session", "why_not"]
