"""cuDNN's descriptors: each object makes one, sets it, and destroys it when nothing refers to the object any more."""

import ctypes
import weakref

import numpy as np

from numbarnn.common.precision import numpy_dtype

from . import driver, options
from .library import ask
from .options import ALGORITHMS, BIAS_MODES, CELLS, DTYPES, INPUT_MODES, LAYOUTS, MATH_TYPES


class Descriptor:
    """A descriptor of one kind ("Tensor", "Dropout", "RNN", "RNNData") of a library; calls take its `pointer`."""

    kind = argument = None

    def __init__(self, library):
        self.library, self.pointer = library, ctypes.c_void_p()
        library.call(f"cudnnCreate{self.kind}Descriptor", **{self.argument: ctypes.byref(self.pointer)})
        weakref.finalize(self, self._destroy, library, self.pointer.value).atexit = False

    @classmethod
    def _destroy(cls, library, pointer):
        library.call(f"cudnnDestroy{cls.kind}Descriptor", **{cls.argument: pointer})


class TensorDescriptor(Descriptor):
    """A fully packed tensor of a shape; without a shape one for cuDNN to set, to be read with `shape`."""

    kind, argument = "Tensor", "tensorDesc"

    def __init__(self, library, shape=None, dtype="float32"):
        super().__init__(library)
        if shape is not None:
            strides = np.cumprod([1, *shape[:0:-1]])[::-1]
            library.call(
                "cudnnSetTensorNdDescriptor", tensorDesc=self.pointer, dataType=DTYPES[dtype], nbDims=len(shape),
                dimA=_ints(shape), strideA=_ints(strides),
            )  # fmt: skip

    def read(self):
        """(dtype's number, shape, strides) as cuDNN has them."""
        shape, strides = _ints([0] * 8), _ints([0] * 8)
        arguments = {"tensorDesc": self.pointer, "nbDimsRequested": 8, "dimA": shape, "strideA": strides}
        dtype, rank = ask(self.library.call, "cudnnGetTensorNdDescriptor", "i:dataType i:nbDims", **arguments).values()
        return dtype, tuple(shape[:rank]), tuple(strides[:rank])


class DropoutDescriptor(Descriptor):
    """Dropout with a state of cuDNN's generator on the session's device; none is needed where nothing is dropped."""

    kind, argument = "Dropout", "dropoutDesc"

    def __init__(self, session, dropout, seed):
        super().__init__(session.library)
        self._states, size = None, 0
        if dropout:
            (size,) = ask(session.call, "cudnnDropoutGetStatesSize", "z:sizeInBytes").values()
            self._states = session.device.empty(size, np.uint8)
        session.call(
            "cudnnSetDropoutDescriptor", dropoutDesc=self.pointer, dropout=dropout,
            states=driver.address(self._states), stateSizeInBytes=size, seed=seed,
        )  # fmt: skip


class RnnDescriptor(Descriptor):
    """A network of some `Options`; CudnnError where cuDNN does not take them."""

    kind, argument = "RNN", "rnnDesc"

    def __init__(self, library, chosen, dropout=None):
        super().__init__(library)
        self._dropout = dropout  # the descriptor refers to it
        library.call(
            "cudnnSetRNNDescriptor_v8", rnnDesc=self.pointer, algo=ALGORITHMS[chosen.algorithm],
            cellMode=CELLS[chosen.cell], biasMode=BIAS_MODES[chosen.bias_mode], dirMode=chosen.directions - 1,
            inputMode=INPUT_MODES[chosen.input_mode], dataType=DTYPES[chosen.dtype], mathPrec=DTYPES[chosen.precision],
            mathType=MATH_TYPES[chosen.math], inputSize=chosen.input_size, hiddenSize=chosen.hidden_size,
            projSize=chosen.proj_size or chosen.hidden_size,  # cuDNN's way of saying none
            numLayers=chosen.num_layers, dropoutDesc=dropout and dropout.pointer, auxFlags=chosen.flags,
        )  # fmt: skip
        if chosen.clip_bounds is not None:
            lclip, rclip = chosen.clip_bounds
            bounds = {"rnnDesc": self.pointer, "clipMode": options.CLIP_MINMAX, "lclip": lclip, "rclip": rclip}
            if chosen.clip_propagate_nan:  # as _v9 always does (it reads back so)
                library.call("cudnnRNNSetClip_v9", **bounds)
            else:
                library.call("cudnnRNNSetClip_v8", clipNanOpt=options.NOT_PROPAGATE_NAN, **bounds)


class DataDescriptor(Descriptor):
    """Sequences of vectors of a width, with B lengths (ints).

    Args:
        padding_value: what cuDNN writes into the padding of an output; None leaves that undefined.
    """

    kind, argument = "RNNData", "rnnDataDesc"

    def __init__(self, library, dtype, layout, steps, batch, width, lengths, padding_value):
        super().__init__(library)
        fill = None if padding_value is None else np.array([padding_value]).astype(numpy_dtype(dtype))
        self._fill = fill  # cuDNN does not say whether it copies what the pointer points to
        library.call(
            "cudnnSetRNNDataDescriptor", rnnDataDesc=self.pointer, dataType=DTYPES[dtype], layout=LAYOUTS[layout],
            maxSeqLength=steps, batchSize=batch, vectorSize=width, seqLengthArray=_ints(lengths),
            paddingFill=None if fill is None else fill.ctypes.data,
        )  # fmt: skip


def _ints(values):
    """A C array of ints."""
    return (ctypes.c_int * len(values))(*map(int, values))
