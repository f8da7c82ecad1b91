"""cuDNN's options by name, with the numbers of its enums (cudnn_adv.h, cudnn_graph.h), and its descriptors."""

import ctypes
import weakref
from dataclasses import dataclass

import numpy as np

from numbarnn.common.precision import compute_dtype, is_half, numpy_dtype

CELLS = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}  # cudnnRNNMode_t
GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}
BIAS_MODES = {"none": 0, "input": 1, "double": 2, "recurrent": 3}  # cudnnRNNBiasMode_t
INPUT_MODES = {"linear": 0, "skip": 1}  # cudnnRNNInputMode_t
ALGORITHMS = {"standard": 0, "persist_static": 1, "persist_dynamic": 2, "persist_static_small_h": 3}  # cudnnRNNAlgo_t
DTYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 9}  # cudnnDataType_t
MATH_TYPES = {"default": 0, "tensor_op": 1, "tensor_op_allow_conversion": 2, "fma": 3}  # cudnnMathType_t
LAYOUTS = {"seq_major_unpacked": 0, "seq_major_packed": 1}  # cudnnRNNDataLayout_t
INFERENCE, TRAINING = 0, 1  # cudnnForwardMode_t
WGRAD_ADD = 0  # cudnnWgradMode_t
CLIP_MINMAX = 1  # cudnnRNNClipMode_t


@dataclass(frozen=True)
class Options:
    """Options of one `Rnn`, which cuDNN checks.

    Attributes:
        bias: True or "double", False or "none", "input" (only b_w), "recurrent" (only b_r).
        cell_clip: None, (lclip, rclip), or a number c for (-c, c).
        math_type: a name of MATH_TYPES. None: "tensor_op" in half precision, else "fma", which excludes TF32.
    """

    cell: str
    input_size: int
    hidden_size: int
    num_layers: int = 1
    bidirectional: bool = False
    bias: bool | str = True
    input_mode: str = "linear"
    proj_size: int = 0
    cell_clip: tuple | float | None = None
    clip_propagate_nan: bool = True
    dtype: str = "float32"
    algorithm: str = "standard"
    math_type: str | None = None
    layout: str = "seq_major_unpacked"

    bias_mode = property(lambda self: {True: "double", False: "none"}.get(self.bias, self.bias))
    math = property(lambda self: self.math_type or ("tensor_op" if is_half(self.dtype) else "fma"))
    gates = property(lambda self: GATES[self.cell])
    directions = property(lambda self: 2 if self.bidirectional else 1)
    state_size = property(lambda self: self.proj_size or self.hidden_size)
    output_size = property(lambda self: self.directions * self.state_size)
    has_c = property(lambda self: self.cell == "lstm")
    clip_bounds = property(lambda self: c if isinstance(c := self.cell_clip, (tuple, type(None))) else (-c, c))


class Descriptor:
    """A descriptor of one kind ("Tensor", "Dropout", "RNN", "RNNData"), destroyed with the object.

    pointer: cuDNN's argument. kept: an object that must live as long as the descriptor.
    """

    def __init__(self, library, kind, kept=None):
        self.library, self.pointer, self.kept = library, ctypes.c_void_p(), kept
        name = {"RNN": "rnn", "RNNData": "rnnData"}.get(kind, kind.lower()) + "Desc"
        library.call(f"cudnnCreate{kind}Descriptor", **{name: ctypes.byref(self.pointer)})
        destroy = f"cudnnDestroy{kind}Descriptor", {name: self.pointer.value}
        weakref.finalize(self, lambda function, arguments: library.call(function, **arguments), *destroy).atexit = False


def tensor(library, shape, dtype):
    made, strides = Descriptor(library, "Tensor"), np.cumprod([1, *shape[:0:-1]])[::-1]
    about = {"dataType": DTYPES[dtype], "nbDims": len(shape), "dimA": _ints(shape), "strideA": _ints(strides)}
    library.call("cudnnSetTensorNdDescriptor", tensorDesc=made.pointer, **about)
    return made


def network(session, chosen):
    """Return the descriptor of a network without dropout. Raise CudnnError if cuDNN refuses the `Options`."""
    dropout = Descriptor(session.library, "Dropout")
    nothing = {"dropout": 0.0, "states": None, "stateSizeInBytes": 0, "seed": 0}
    session.call("cudnnSetDropoutDescriptor", dropoutDesc=dropout.pointer, **nothing)
    made = Descriptor(session.library, "RNN", kept=dropout)
    set_network(made, chosen, dropout.pointer)
    return made


def set_network(made, chosen, dropout=None):
    made.library.call(
        "cudnnSetRNNDescriptor_v8", rnnDesc=made.pointer, algo=ALGORITHMS[chosen.algorithm],
        cellMode=CELLS[chosen.cell], biasMode=BIAS_MODES[chosen.bias_mode], dirMode=chosen.directions - 1,
        inputMode=INPUT_MODES[chosen.input_mode], dataType=DTYPES[chosen.dtype],
        mathPrec=DTYPES[compute_dtype(chosen.dtype)], mathType=MATH_TYPES[chosen.math],
        inputSize=chosen.input_size, hiddenSize=chosen.hidden_size, projSize=chosen.state_size,
        numLayers=chosen.num_layers, dropoutDesc=dropout, auxFlags=int(chosen.layout == "seq_major_unpacked"),
    )  # fmt: skip
    if chosen.clip_bounds is not None:
        lclip, rclip = map(float, chosen.clip_bounds)
        about = {"clipMode": CLIP_MINMAX, "clipNanOpt": int(chosen.clip_propagate_nan), "lclip": lclip, "rclip": rclip}
        made.library.call("cudnnRNNSetClip_v8", rnnDesc=made.pointer, **about)


def sequences(library, chosen, steps, width, lengths, padding_value):
    """Return the descriptor of sequences of vectors, with B lengths (ints).

    padding_value: value of an output's padding; None: undefined."""
    fill = None if padding_value is None else np.array([padding_value]).astype(numpy_dtype(chosen.dtype))
    made = Descriptor(library, "RNNData", kept=fill)  # cuDNN may or may not copy it
    library.call(
        "cudnnSetRNNDataDescriptor", rnnDataDesc=made.pointer, dataType=DTYPES[chosen.dtype],
        layout=LAYOUTS[chosen.layout], maxSeqLength=steps, batchSize=len(lengths), vectorSize=width,
        seqLengthArray=_ints(lengths), paddingFill=None if fill is None else fill.ctypes.data,
    )  # fmt: skip
    return made


def _ints(values):
    return (ctypes.c_int * len(values))(*map(int, values))
