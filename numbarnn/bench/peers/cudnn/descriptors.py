"""cuDNN's descriptors: each object makes one, sets it, and destroys it when nothing refers to the object any more."""

import ctypes
import weakref

import numpy as np

from . import driver, options
from .options import ALGORITHMS, BIAS_MODES, CELLS, DTYPES, INPUT_MODES, LAYOUTS, MATH_TYPES, numpy_dtype


class Descriptor:
    """A descriptor of one kind ("Tensor", "Dropout", "RNN", "RNNData") of a library.

    Attributes:
        pointer: what calls take.
    """

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
        dtype, rank, shape, strides = ctypes.c_int(), ctypes.c_int(), _ints([0] * 8), _ints([0] * 8)
        self.library.call(
            "cudnnGetTensorNdDescriptor", tensorDesc=self.pointer, nbDimsRequested=8, dataType=ctypes.byref(dtype),
            nbDims=ctypes.byref(rank), dimA=shape, strideA=strides,
        )  # fmt: skip
        return dtype.value, tuple(shape[: rank.value]), tuple(strides[: rank.value])


class DropoutDescriptor(Descriptor):
    """Dropout with a state of cuDNN's generator on the session's device; none is needed where nothing is dropped."""

    kind, argument = "Dropout", "dropoutDesc"

    def __init__(self, session, dropout, seed):
        super().__init__(session.library)
        self._states, size = None, ctypes.c_size_t(0)
        if dropout:
            session.call("cudnnDropoutGetStatesSize", sizeInBytes=ctypes.byref(size))
            self._states = driver.Buffer(session.device, size.value)
        session.call(
            "cudnnSetDropoutDescriptor", dropoutDesc=self.pointer, dropout=dropout,
            states=driver.address(self._states), stateSizeInBytes=size.value, seed=seed,
        )  # fmt: skip


class RnnDescriptor(Descriptor):
    """A network.

    Args:
        library: a Library. chosen: `Options`. dropout: a DropoutDescriptor, or None.

    Raises:
        CudnnError: cuDNN does not take these options.
    """

    kind, argument = "RNN", "rnnDesc"

    def __init__(self, library, chosen, dropout=None):
        super().__init__(library)
        self._dropout = dropout  # the descriptor refers to it
        library.call(
            "cudnnSetRNNDescriptor_v8",
            rnnDesc=self.pointer,
            algo=ALGORITHMS[chosen.algorithm],
            cellMode=CELLS[chosen.cell],
            biasMode=BIAS_MODES[chosen.bias_mode],
            dirMode=chosen.directions - 1,
            inputMode=INPUT_MODES[chosen.input_mode],
            dataType=DTYPES[chosen.dtype],
            mathPrec=DTYPES[chosen.precision],
            mathType=MATH_TYPES[chosen.math],
            inputSize=chosen.input_size,
            hiddenSize=chosen.hidden_size,
            projSize=chosen.proj_size or chosen.hidden_size,  # cuDNN's way of saying none
            numLayers=chosen.num_layers,
            dropoutDesc=None if dropout is None else dropout.pointer,
            auxFlags=chosen.flags,
        )
        if chosen.clip_bounds is not None:
            self._set_clip(*chosen.clip_bounds, chosen.clip_propagate_nan)

    def _set_clip(self, lclip, rclip, propagate_nan):
        """_v9 always propagates NaN (it reads back so); what does not is only to be had from _v8."""
        bounds = {"rnnDesc": self.pointer, "clipMode": options.CLIP_MINMAX, "lclip": lclip, "rclip": rclip}
        if propagate_nan:
            self.library.call("cudnnRNNSetClip_v9", **bounds)
        else:
            self.library.call("cudnnRNNSetClip_v8", clipNanOpt=options.NOT_PROPAGATE_NAN, **bounds)

    def read(self):
        """cuDNN's name of each argument of cudnnSetRNNDescriptor_v8 -> the number it has."""
        names = (
            "algo cellMode biasMode dirMode inputMode dataType mathPrec mathType inputSize hiddenSize projSize "
            "numLayers auxFlags"
        )
        found = {name: ctypes.c_int() for name in names.split()}
        pointers = {name: ctypes.byref(value) for name, value in found.items()}
        dropout = ctypes.byref(ctypes.c_void_p())
        self.library.call("cudnnGetRNNDescriptor_v8", rnnDesc=self.pointer, dropoutDesc=dropout, **pointers)
        return {name: value.value for name, value in found.items()}

    def read_clip(self):
        """(clipMode, clipNanOpt, lclip, rclip) as cuDNN has them."""
        found = ctypes.c_int(), ctypes.c_int(), ctypes.c_double(), ctypes.c_double()
        names = ("clipMode", "clipNanOpt", "lclip", "rclip")
        pointers = {name: ctypes.byref(value) for name, value in zip(names, found, strict=True)}
        self.library.call("cudnnRNNGetClip_v8", rnnDesc=self.pointer, **pointers)
        return tuple(value.value for value in found)


class DataDescriptor(Descriptor):
    """Sequences of vectors.

    Args:
        library: a Library.
        dtype, layout: names of DTYPES and LAYOUTS.
        steps, batch, width: T, B and the size of a vector.
        lengths: B ints.
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
        self._batch, self._dtype = batch, dtype

    def read(self):
        """(dtype's number, layout's number, T, B, width, lengths, padding value) as cuDNN has them."""
        numbers = [ctypes.c_int() for _ in range(5)]
        names = ("dataType", "layout", "maxSeqLength", "batchSize", "vectorSize")
        pointers = {name: ctypes.byref(value) for name, value in zip(names, numbers, strict=True)}
        lengths, fill = _ints([0] * self._batch), np.zeros(1, numpy_dtype(self._dtype))
        self.library.call(
            "cudnnGetRNNDataDescriptor", rnnDataDesc=self.pointer, arrayLengthRequested=self._batch,
            seqLengthArray=lengths, paddingFill=fill.ctypes.data, **pointers,
        )  # fmt: skip
        return (*(value.value for value in numbers), tuple(lengths), float(fill[0]))


def _ints(values):
    """A C array of ints."""
    return (ctypes.c_int * len(values))(*map(int, values))
