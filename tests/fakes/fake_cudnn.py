"""A cuDNN made of NumPy, for running numbarnn.bench.peers.cudnn on the emulated GPU.

    session = fake_cudnn.session()
    rnn = cudnn.Rnn("lstm", 3, 4, session=session)

Its functions take cuDNN's arguments by cuDNN's names, as `Library.call` does. Memory is the emulated GPU's; each access
is checked against what was allocated. What it computes comes from `numbarnn.reference`, and where parameters stand it
counts itself, so that results are right only if every argument was. It refuses what cuDNN 9.28 refuses, and answers
like it (seen with the library itself, without a GPU). While a graph is recorded, calls that compute are kept for its
launches, and nothing runs.
"""

import ctypes

import numpy as np

from emulator import cupy_module
from emulator.memory import BASE
from numbarnn import reference
from numbarnn.bench.peers.cudnn import CudnnError, Session
from numbarnn.bench.peers.cudnn.descriptors import DTYPES, LAYOUTS
from numbarnn.bench.peers.cudnn.library import in_order
from numbarnn.common.precision import numpy_dtype

NAMES = {number: name for name, number in DTYPES.items()}
CELLS = ("rnn_relu", "rnn_tanh", "lstm", "gru")
GATES = (1, 1, 4, 3)
BIASES = ((), ("bias_ih",), ("bias_ih", "bias_hh"), ("bias_hh",))  # by cuDNN's number of the bias mode
RUNNING = ("cudnnRNNForward", "cudnnRNNBackwardData_v8", "cudnnRNNBackwardWeights_v8")
WORK_SIZE, RESERVE_SIZE = 48, 80
STATUS = {2000: "CUDNN_STATUS_BAD_PARAM", 3000: "CUDNN_STATUS_NOT_SUPPORTED", 5000: "CUDNN_STATUS_EXECUTION_FAILED"}


def session():
    """A Session of a fake library on the emulated GPU; its context counts."""
    context = Context()
    return Session(FakeLibrary(context), cupy_module, context)


class Context(cupy_module.Device):
    """The device as a context. Attributes: entered, how many there are."""

    entered = 0

    def __enter__(self):
        self.entered += 1

    def __exit__(self, *exception):
        self.entered -= 1


def block(address, size):
    """The bytes at an address of the device, where exactly so many must have been allocated."""
    start, memory = address - BASE, cupy_module.device_memory
    assert memory.is_allocated[start : start + size].all() and not memory.is_allocated[start + max(size, 1)], size
    return memory.array(address, np.uint8, (size,))


class FakeLibrary:
    """cuDNN, as `library.Library` has it.

    Attributes:
        calls: names of the functions called. runs: how many computed something, at once or in a graph.
        alive: pointers of the descriptors that exist.
        not_recorded: numbers of the algorithms that fail while a graph is recorded.
    """

    version, version_text = 92800, "9.28.0"

    def __init__(self, context):
        self.context, self.calls, self.alive, self.tapes, self.runs = context, [], {}, {}, 0
        self.stream, self.not_recorded = None, ()
        self._pointers = iter(range(0x1000, 0x7FFFFFFF, 16))

    def call(self, function, **arguments):
        in_order(function, arguments)
        self.calls.append(function)
        if "handle" in arguments and function != "cudnnCreate":
            assert arguments["handle"].value == 7, "another handle than cudnnCreate made"
            assert self.context.entered, "the device's context is not the current one"
        for kind in ("Tensor", "Dropout", "RNNData", "RNN"):
            if function == f"cudnnCreate{kind}Descriptor":
                return self.create(kind, *arguments.values())
            if function == f"cudnnDestroy{kind}Descriptor":
                return self.destroy(kind, *arguments.values())
        if function not in RUNNING:
            return getattr(self, function)(**arguments)
        if self.stream is not None and self.get("RNN", arguments["rnnDesc"])["algo"] in self.not_recorded:
            self.fail(function, 5000)

        def run():
            self.runs += 1
            getattr(self, function)(**arguments)

        return cupy_module.stream_of(self.stream or 0).do(run)

    def cudnnSetStream(self, handle, streamId):
        self.stream = streamId

    @staticmethod
    def fail(function, status):
        raise CudnnError(function, status, STATUS[status], "words of its own")

    # -------------------------------------------------------------------------------------------------- descriptors
    def create(self, kind, pointer):
        pointer._obj.value = next(self._pointers)
        self.alive[pointer._obj.value] = {"kind": kind}

    def destroy(self, kind, pointer):
        assert self.alive.pop(pointer)["kind"] == kind

    def get(self, kind, pointer):
        """What a descriptor was set to."""
        found = self.alive[pointer.value]
        assert found["kind"] == kind
        return found

    def cudnnCreate(self, handle):
        handle._obj.value = 7

    def cudnnSetTensorNdDescriptor(self, tensorDesc, dataType, nbDims, dimA, strideA):
        assert nbDims == len(dimA) == len(strideA) == 3
        assert list(strideA) == [dimA[1] * dimA[2], dimA[2], 1], "a state is fully packed"
        self.get("Tensor", tensorDesc).update(dtype=dataType, shape=tuple(dimA))

    def cudnnSetDropoutDescriptor(self, dropoutDesc, handle, dropout, states, stateSizeInBytes, seed):
        assert (dropout, states, stateSizeInBytes) == (0.0, None, 0)
        self.get("Dropout", dropoutDesc)

    def cudnnSetRNNDescriptor_v8(self, rnnDesc, **given):
        a = dict(given)
        assert a.pop("dropoutDesc") is None or self.get("Dropout", given["dropoutDesc"])
        if min(a["inputSize"], a["hiddenSize"], a["numLayers"], a["projSize"]) < 1:
            self.fail("cudnnSetRNNDescriptor_v8", 2000)
        projected = a["projSize"] != a["hiddenSize"]
        refused = a["projSize"] > a["hiddenSize"] or (projected and a["cellMode"] != 2)
        refused |= a["algo"] != 0 and (projected or a["biasMode"] != 2)
        refused |= a["algo"] in (1, 3) and a["dataType"] == 1
        if refused:
            self.fail("cudnnSetRNNDescriptor_v8", 3000)
        self.get("RNN", rnnDesc).update(a, clip=None, nan=1, built=None)

    def cudnnRNNSetClip_v8(self, rnnDesc, clipMode, clipNanOpt, lclip, rclip):
        if not lclip <= rclip:
            self.fail("cudnnRNNSetClip", 2000)
        self.get("RNN", rnnDesc).update(clip=(lclip, rclip) if clipMode else None, nan=clipNanOpt)

    def cudnnSetRNNDataDescriptor(self, rnnDataDesc, paddingFill, seqLengthArray, **given):
        lengths, steps = list(seqLengthArray), given["maxSeqLength"]
        assert len(lengths) == given["batchSize"]
        packed = given["layout"] == LAYOUTS["seq_major_packed"]
        descending = 0 not in lengths and max(lengths) == steps and lengths == sorted(lengths, reverse=True)
        if min(lengths) < 0 or max(lengths) > steps or (packed and not descending):
            self.fail("cudnnSetRNNDataDescriptor", 2000)
        dtype = numpy_dtype(NAMES[given["dataType"]])
        fill = np.frombuffer(ctypes.string_at(paddingFill, dtype.itemsize), dtype)[0] if paddingFill else None
        self.get("RNNData", rnnDataDesc).update(given, lengths=lengths, fill=fill)

    # ------------------------------------------------------------------------------------------------------ weights
    def parameters_of(self, rnn):
        """(kind, pseudo-layer, gate, shape, offset) of every matrix, then of every bias, and the size in all."""
        gates, H, P = GATES[rnn["cellMode"]], rnn["hiddenSize"], rnn["projSize"]
        found, offset, D = [], 0, rnn["dirMode"] + 1
        pseudo_layers = range(rnn["numLayers"] * D)
        for pseudo in pseudo_layers:
            inputs = rnn["inputSize"] if pseudo < D else D * P
            kinds = [("weight_ih", (H, inputs))] * (pseudo >= D or rnn["inputMode"] == 0) + [("weight_hh", (H, P))]
            kinds = [(kind, gate, shape) for kind, shape in kinds for gate in range(gates)]
            kinds += [("weight_hr", 0, (P, H))] if P != H else []
            for kind, gate, shape in kinds:
                found.append((kind, pseudo, gate, shape, offset))
                offset += shape[0] * shape[1]
        for pseudo in pseudo_layers:
            for kind in BIASES[rnn["biasMode"]]:
                for gate in range(gates):
                    found.append((kind, pseudo, gate, (H, 1), offset))
                    offset += H
        return found, offset

    def weight_bytes(self, rnn):
        return self.parameters_of(rnn)[1] * numpy_dtype(NAMES[rnn["dataType"]]).itemsize

    def cudnnGetRNNWeightSpaceSize(self, handle, rnnDesc, weightSpaceSize):
        weightSpaceSize._obj.value = self.weight_bytes(self.get("RNN", rnnDesc))

    def named(self, rnn, flat):
        """PyTorch's name -> array of a flat weight space."""
        parts, D = {}, rnn["dirMode"] + 1
        for kind, pseudo, _, shape, offset in self.parameters_of(rnn)[0]:
            name = f"{kind}_l{pseudo // D}{'_reverse' if pseudo % D else ''}"
            part = flat[offset : offset + shape[0] * shape[1]].reshape(shape)
            parts.setdefault(name, []).append(part[:, 0] if "bias" in kind else part)
        return {name: np.concatenate(gates) for name, gates in parts.items()}

    # -------------------------------------------------------------------------------------------------------- running
    def cudnnBuildRNNDynamic(self, handle, rnnDesc, miniBatch):
        self.get("RNN", rnnDesc)["built"] = miniBatch

    def cudnnGetRNNTempSpaceSizes(self, handle, rnnDesc, fwdMode, xDesc, workSpaceSize, reserveSpaceSize):
        rnn, data = self.get("RNN", rnnDesc), self.get("RNNData", xDesc)
        assert rnn["algo"] != 2 or rnn["built"] == data["batchSize"], "PERSIST_DYNAMIC was not compiled for this batch"
        if rnn["algo"] != 0 and len(set(data["lengths"])) > 1:
            self.fail("cudnnGetRNNTempSpaceSizes", 3000)
        workSpaceSize._obj.value, reserveSpaceSize._obj.value = WORK_SIZE, RESERVE_SIZE if fwdMode else 0

    def array(self, address, shape, dtype):
        """The array at an address, as it is in memory; None for NULL."""
        if address is None:
            return None
        dtype = numpy_dtype(NAMES[dtype])
        size = int(np.prod(shape)) * dtype.itemsize
        return block(address, size).view(dtype).reshape(shape)

    def sequences(self, address, data):
        """An array of sequences in any layout as (T, B, n), and what writes such an array back."""
        T, B, n, dtype = (data[name] for name in ("maxSeqLength", "batchSize", "vectorSize", "dataType"))
        if data["layout"] == LAYOUTS["seq_major_packed"]:
            raw = self.array(address, (sum(data["lengths"]), n), dtype)
            valid = np.arange(T)[:, None] < np.array(data["lengths"])
            padded = np.full((T, B, n), np.nan, raw.dtype)
            padded[valid] = raw
            return padded, lambda value: raw.__setitem__(..., value[valid].astype(raw.dtype))
        raw = self.array(address, (T, B, n), dtype)
        return raw, lambda value: raw.__setitem__(..., value.astype(raw.dtype))

    def check_spaces(self, workSpaceSize, workSpace, reserveSpaceSize, reserveSpace):
        assert workSpaceSize == WORK_SIZE and reserveSpaceSize in (0, RESERVE_SIZE)
        block(workSpace, workSpaceSize)
        assert not reserveSpaceSize or block(reserveSpace, reserveSpaceSize) is not None

    def cudnnRNNForward(
        self, handle, rnnDesc, fwdMode, devSeqLengths, xDesc, x, yDesc, y, hDesc, hx, hy, cDesc, cx, cy,
        weightSpaceSize, weightSpace, **spaces,
    ):  # fmt: skip
        rnn, x_data, y_data = self.get("RNN", rnnDesc), self.get("RNNData", xDesc), self.get("RNNData", yDesc)
        self.check_spaces(**spaces)
        assert weightSpaceSize == self.weight_bytes(rnn) and devSeqLengths is None
        assert x_data["lengths"] == y_data["lengths"]
        states = [self.state(hDesc, hx), self.state(cDesc, cx)]
        result = reference.forward(
            CELLS[rnn["cellMode"]], self.sequences(x, x_data)[0], self.named(rnn, self.flat(weightSpace, rnn)), *states,
            lengths=x_data["lengths"], cell_clip=rnn["clip"], clip_propagate_nan=bool(rnn["nan"]),
            padding_value=np.nan if y_data["fill"] is None else float(y_data["fill"]),
        )  # fmt: skip
        self.sequences(y, y_data)[1](result.y)
        self.write_state(hDesc, hy, result.hy, x_data["lengths"])
        self.write_state(cDesc, cy, result.cy, x_data["lengths"])
        if fwdMode:
            inputs = {"x": x, "y": y, "hx": hx, "cx": cx, "weightSpace": weightSpace}
            self.tapes[spaces["reserveSpace"]] = {"result": result, "inputs": inputs, "gradients": None}

    def flat(self, address, rnn):
        """The weight space at an address."""
        return self.array(address, (self.parameters_of(rnn)[1],), rnn["dataType"])

    def state(self, descriptor, address):
        """A copy of a state; None for NULL."""
        if address is None:
            return None
        tensor = self.get("Tensor", descriptor)
        return self.array(address, tensor["shape"], tensor["dtype"]).copy()

    def write_state(self, descriptor, address, value, lengths):
        """Write a list of one (D, B, H) per layer; zeros for sequences of length zero, as cuDNN does."""
        if value is not None:
            tensor = self.get("Tensor", descriptor)
            memory = self.array(address, tensor["shape"], tensor["dtype"])
            memory[...] = np.concatenate(value).astype(memory.dtype)
            memory[:, np.array(lengths) == 0] = 0

    def tape(self, reserve, **inputs):
        """What a forward call left, after a check that these arguments are the same as its."""
        tape = self.tapes[reserve]
        assert inputs == {name: tape["inputs"][name] for name in inputs}
        return tape

    def cudnnRNNBackwardData_v8(
        self, handle, rnnDesc, devSeqLengths, yDesc, y, dy, xDesc, dx, hDesc, hx, dhy, dhx, cDesc, cx, dcy, dcx,
        weightSpaceSize, weightSpace, **spaces,
    ):  # fmt: skip
        self.check_spaces(**spaces)
        assert devSeqLengths is None and weightSpaceSize == self.weight_bytes(self.get("RNN", rnnDesc))
        tape = self.tape(spaces["reserveSpace"], y=y, hx=hx, cx=cx, weightSpace=weightSpace)
        dy = self.sequences(dy, self.get("RNNData", yDesc))[0]
        gradients = reference.backward(tape["result"], dy, self.state(hDesc, dhy), self.state(cDesc, dcy))
        x_data = self.get("RNNData", xDesc)
        self.sequences(dx, x_data)[1](gradients.dx)
        self.write_state(hDesc, dhx, gradients.dhx, x_data["lengths"])
        self.write_state(cDesc, dcx, gradients.dcx, x_data["lengths"])
        tape["gradients"] = gradients.params

    def cudnnRNNBackwardWeights_v8(
        self, handle, rnnDesc, addGrad, devSeqLengths, xDesc, x, hDesc, hx, yDesc, y, weightSpaceSize, dweightSpace,
        **spaces,
    ):  # fmt: skip
        rnn = self.get("RNN", rnnDesc)
        self.check_spaces(**spaces)
        self.get("RNNData", xDesc), self.get("RNNData", yDesc), self.get("Tensor", hDesc)
        assert addGrad == 0 and devSeqLengths is None and weightSpaceSize == self.weight_bytes(rnn)
        gradients = self.tape(spaces["reserveSpace"], x=x, y=y, hx=hx)["gradients"]
        flat, D = self.flat(dweightSpace, rnn), rnn["dirMode"] + 1
        for kind, pseudo, gate, shape, offset in self.parameters_of(rnn)[0]:
            gradient = gradients[f"{kind}_l{pseudo // D}{'_reverse' if pseudo % D else ''}"]
            part = gradient[gate * shape[0] : (gate + 1) * shape[0]]
            flat[offset : offset + part.size] += part.ravel().astype(flat.dtype)
