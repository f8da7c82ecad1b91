"""cuDNN's recurrent networks called through ctypes: NumPy arrays in, NumPy arrays out. The peer on NVIDIA GPUs.

Made for comparing results: every call copies its arrays to the device and back, and waits. For times there is
`Rnn.prepare`, which leaves all of that out of what runs. Needed are NumPy (ml_dtypes for bfloat16), CuPy, an NVIDIA
driver and cuDNN 9: pip install nvidia-cudnn-cu12, or -cu13 to match the driver. In this order:

    library.py      where cuDNN is found; its functions, their arguments by cuDNN's names; errors in its own words
    device.py       a GPU by CuPy, its memory and CUDA graphs; library, device and cuDNN's handle together
    descriptors.py  cuDNN's options by name; its descriptor objects
    rnn.py          Rnn: forward, backward_data, backward_weights, prepare; where cuDNN puts each parameter

    rnn = cudnn.Rnn("lstm", input_size, hidden_size, num_layers)
    y, hy, cy, reserve = rnn.forward(x, hx, cx, weights)       # weights: a dict with PyTorch's names
    dx, dhx, dcx = rnn.backward_data(reserve, dy)
    dweights = rnn.split(rnn.backward_weights(reserve))
"""

from .descriptors import Options
from .device import Session, default_session, why_not
from .library import CudnnError
from .rnn import Rnn

__all__ = ["CudnnError", "Options", "Rnn", "Session", "default_session", "why_not"]
