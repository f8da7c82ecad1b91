"""Find, load and call cuDNN 9, with arguments by cuDNN's names, on the first GPU, with CuPy's memory.

The prototypes are those of the wheel's headers (nvidia/cudnn/include, cuDNN 9.28). A test compares them.
"""

import ctypes
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np

from numbarnn import engines
from numbarnn.cuda.driver import cupy

OLDEST = 90000  # cudnnGetVersion: major * 10000 + minor * 100 + patch
PATH_VARIABLE = "NUMBARNN_CUDNN"  # path of cuDNN's file or folder, instead of a search
INSTALL = "pip install nvidia-cudnn-cu12 (or nvidia-cudnn-cu13: whichever CUDA your driver supports)"

# One letter per C type: i int, int32_t or an enum; u uint32_t; z size_t; Q unsigned long long; f float; d double;
# p any pointer, descriptor or handle. All functions return a status.
_TYPES = {
    "i": ctypes.c_int, "u": ctypes.c_uint32, "z": ctypes.c_size_t, "Q": ctypes.c_ulonglong, "f": ctypes.c_float,
    "d": ctypes.c_double, "p": ctypes.c_void_p,
}  # fmt: skip
_SPACES = "z:workSpaceSize p:workSpace z:reserveSpaceSize p:reserveSpace"
_PROTOTYPES = {
    "cudnnCreate": "p:handle",
    "cudnnSetStream": "p:handle p:streamId",
    "cudnnSetTensorNdDescriptor": "p:tensorDesc i:dataType i:nbDims p:dimA p:strideA",
    "cudnnSetDropoutDescriptor": "p:dropoutDesc p:handle f:dropout p:states z:stateSizeInBytes Q:seed",
    "cudnnSetRNNDescriptor_v8": (
        "p:rnnDesc i:algo i:cellMode i:biasMode i:dirMode i:inputMode i:dataType i:mathPrec i:mathType i:inputSize "
        "i:hiddenSize i:projSize i:numLayers p:dropoutDesc u:auxFlags"
    ),
    "cudnnRNNSetClip_v8": "p:rnnDesc i:clipMode i:clipNanOpt d:lclip d:rclip",
    "cudnnBuildRNNDynamic": "p:handle p:rnnDesc i:miniBatch",
    "cudnnGetRNNTempSpaceSizes": "p:handle p:rnnDesc i:fwdMode p:xDesc p:workSpaceSize p:reserveSpaceSize",
    "cudnnGetRNNWeightSpaceSize": "p:handle p:rnnDesc p:weightSpaceSize",
    "cudnnSetRNNDataDescriptor": (
        "p:rnnDataDesc i:dataType i:layout i:maxSeqLength i:batchSize i:vectorSize p:seqLengthArray p:paddingFill"
    ),
    "cudnnRNNForward": (
        "p:handle p:rnnDesc i:fwdMode p:devSeqLengths p:xDesc p:x p:yDesc p:y p:hDesc p:hx p:hy p:cDesc p:cx p:cy "
        f"z:weightSpaceSize p:weightSpace {_SPACES}"
    ),
    "cudnnRNNBackwardData_v8": (
        "p:handle p:rnnDesc p:devSeqLengths p:yDesc p:y p:dy p:xDesc p:dx p:hDesc p:hx p:dhy p:dhx p:cDesc p:cx p:dcy "
        f"p:dcx z:weightSpaceSize p:weightSpace {_SPACES}"
    ),
    "cudnnRNNBackwardWeights_v8": (
        "p:handle p:rnnDesc i:addGrad p:devSeqLengths p:xDesc p:x p:hDesc p:hx p:yDesc p:y z:weightSpaceSize "
        f"p:dweightSpace {_SPACES}"
    ),
}
for _kind, _argument in (("Tensor", "tensor"), ("Dropout", "dropout"), ("RNN", "rnn"), ("RNNData", "rnnData")):
    _PROTOTYPES |= {f"cudnn{verb}{_kind}Descriptor": f"p:{_argument}Desc" for verb in ("Create", "Destroy")}
# name -> ((argument, letter of its type), ...)
PROTOTYPES = {
    function: tuple((argument.partition(":")[2], argument[0]) for argument in arguments.split())
    for function, arguments in _PROTOTYPES.items()
}

# Status, or its first digit -> what to do.
_CURES = {
    1001: "usually there is no GPU or driver that this cuDNN can use, or its cuBLAS is missing: pip install "
    "nvidia-cublas-cu12 nvidia-cuda-nvrtc-cu12 (for CUDA 13: nvidia-cublas nvidia-cuda-nvrtc)",
    1002: "the files of several versions of cuDNN are mixed: reinstall it",
    1008: "one of cuDNN's own libraries, or cuBLAS or NVRTC, is missing beside it: reinstall it",
    3: "cuDNN has no such option, or not with this algorithm, dtype or size: algorithm='standard' takes most",
}


class CudnnError(RuntimeError):
    """cuDNN returned an error. refused: it does not support the options."""

    refused = property(lambda self: self.status // 1000 == 3)

    def __init__(self, function, status, name, words=""):
        self.status, self.name = status, name
        cure = _CURES.get(status) or _CURES.get(status // 1000)
        said = "; ".join(" ".join(line.split()) for line in words.splitlines() if line.strip())
        message = f"{function}: {name} ({status})" + (f": {said}" if said else "")
        super().__init__(message + (f". {cure[0].upper()}{cure[1:]}" if cure else ""))


class Library:
    """cuDNN, loaded from a path or by a name that the system finds. version: its number, such as 92800.

    Raises OSError if it cannot be loaded, RuntimeError if it is older than 9.0.
    """

    def __init__(self, file):
        self.file, self._library = str(file), ctypes.CDLL(str(file))
        self._library.cudnnGetVersion.restype = ctypes.c_size_t
        self._library.cudnnGetErrorString.restype = ctypes.c_char_p
        self.version = self._library.cudnnGetVersion()
        scale = 10000 if self.version >= OLDEST else 1000  # until cuDNN 8: major * 1000
        self.version_text = f"{self.version // scale}.{self.version % scale // 100}.{self.version % 100}"
        if self.version < OLDEST:
            raise RuntimeError(f"{self.file} is cuDNN {self.version_text}; cuDNN 9 is needed: {INSTALL}")

    def call(self, function, **arguments):
        """Call a function of PROTOTYPES, None for NULL. Raise CudnnError if it fails."""
        values = in_order(function, arguments)
        try:
            pointer = getattr(self._library, function)
        except AttributeError:
            raise RuntimeError(f"cuDNN {self.version_text} has no {function}: {INSTALL}") from None
        pointer.argtypes = [_TYPES[letter] for _, letter in PROTOTYPES[function]]
        if status := pointer(*values):
            name, text = self._library.cudnnGetErrorString(status).decode(), ctypes.create_string_buffer(4096)
            self._library.cudnnGetLastErrorString(text, ctypes.c_size_t(len(text)))  # of this thread
            raise CudnnError(function, status, name, text.value.decode(errors="replace"))


def in_order(function, arguments):
    """Return arguments in the order of the function's prototype."""
    names = [name for name, _ in PROTOTYPES[function]]
    if set(names) != set(arguments):
        raise TypeError(
            f"{function}: missing {sorted(set(names) - set(arguments))}, unknown {sorted(set(arguments) - set(names))}"
        )
    return [arguments[name] for name in names]


def ask(call, function, outputs, **arguments):
    """Return name -> number that a cuDNN function writes. outputs: types and names, such as "i:algo"."""
    found = {output[2:]: _TYPES[output[0]]() for output in outputs.split()}
    call(function, **arguments, **{name: ctypes.byref(value) for name, value in found.items()})
    return {name: value.value for name, value in found.items()}


def load(roots=None):
    """Load cuDNN 9 from the environment variable's path, or from wheels in `roots`, or as the system finds it.

    Raise RuntimeError, which says what to install, if there is none."""
    names, problems = ("libcudnn.so.9", "libcudnn.so"), []
    if chosen := os.environ.get(PATH_VARIABLE):
        files = [Path(chosen, name) for name in names] if Path(chosen).is_dir() else [Path(chosen)]
    else:
        files = [Path(root, "nvidia", "cudnn", "lib", names[0]) for root in roots or sys.path]
        files = [file for file in files if file.is_file()] + list(names)
    for file in files:
        try:
            return Library(file)
        except (OSError, RuntimeError, AttributeError) as error:
            problems.append(str(error))
    raise RuntimeError(f"cuDNN 9 is not found ({'; '.join(problems)}): {INSTALL}, or set {PATH_VARIABLE} to its folder")


library = cache(load)


def preload_companions(roots=None):
    """Load cuBLAS and NVRTC from wheels, so that cuDNN finds them by name."""
    for root in roots or sys.path:
        for pattern in ("libcublasLt.so.*", "libcublas.so.*", "libnvrtc.so.*"):
            for file in sorted(Path(root).glob(f"nvidia/*/lib/{pattern}")):
                with suppress(OSError):  # cuDNN reports what it lacks
                    ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)


NAN_BYTE = 0xFF  # a number of such bytes is NaN in every dtype


class Session:
    """cuDNN on one device, for one thread at a time.

    Args:
        library: a `Library`. arrays: the module CuPy. device: a CuPy device.
    """

    def __init__(self, library, arrays, device):
        self.library, self._arrays, self.device, self.handle = library, arrays, device, ctypes.c_void_p()
        with device:  # the handle is never destroyed: a Session lives as long as the process
            library.call("cudnnCreate", handle=ctypes.byref(self.handle))

    def call(self, function, **arguments):
        """Call a cuDNN function that takes the handle, without waiting for the device."""
        with self.device:
            self.library.call(function, handle=self.handle, **arguments)

    def empty(self, shape, dtype, byte=None):
        """Return a new CuPy array. byte: value of every byte."""
        try:
            with self.device:
                array = self._arrays.empty(shape, dtype)
        except MemoryError as error:
            raise RuntimeError(f"{error}; free memory on the device, or use smaller sizes") from error
        if byte is not None:
            self.fill(array, byte)
        return array

    def copied(self, array):
        """Copy a NumPy array to the device; None stays None."""
        if array is not None:
            out = self.empty(array.shape, array.dtype)
            with self.device:
                out.set(np.ascontiguousarray(array))
            return out

    def fill(self, array, byte, stream=None):
        """Set every byte, in the order of a stream; None: the default stream."""
        with self.device:
            self._arrays.cuda.runtime.memsetAsync(array.data.ptr, byte, array.nbytes, stream or 0)

    def read(self, array):
        with self.device:
            return self._arrays.asnumpy(array)

    def record(self, work):
        """Return the CUDA graph of what `work(stream)` starts. The caller must keep the memory that it uses.

        Raise RuntimeError if it cannot be captured."""
        with self.device:
            stream = self._arrays.cuda.Stream(non_blocking=True)
            stream.begin_capture()  # in relaxed mode, as cuDNN may allocate memory
            try:
                self.call("cudnnSetStream", streamId=stream.ptr)
                work(stream.ptr)
            except BaseException:  # the capture must end in any case
                with suppress(RuntimeError):
                    stream.end_capture()
                raise
            finally:
                self.call("cudnnSetStream", streamId=None)
            return stream.end_capture()

    def launch(self, graph):
        """Launch a graph on the default stream, without waiting."""
        with self.device:
            graph.launch(self._arrays.cuda.Stream.null)

    def __str__(self):
        """Return "cuDNN 9.28.0 on NVIDIA H200, CUDA driver 13.0"."""
        runtime = self._arrays.cuda.runtime
        name, driver = runtime.getDeviceProperties(0)["name"].decode(errors="replace"), runtime.driverGetVersion()
        return f"cuDNN {self.library.version_text} on {name}, CUDA driver {driver // 1000}.{driver % 1000 // 10}"


@cache
def default_session():
    """Return cuDNN on the first GPU. Raise RuntimeError if it cannot be used."""
    loaded = library()
    if (problem := engines.why_not("cuda")) is not None:
        raise RuntimeError(f"cuDNN needs an NVIDIA GPU and its driver: {problem}")
    preload_companions()
    return Session(loaded, cupy(), cupy().cuda.Device(0))


@cache
def why_not():
    """Return why cuDNN cannot be used here; None if it can."""
    try:
        default_session()
    except RuntimeError as error:
        return str(error)
    return None
