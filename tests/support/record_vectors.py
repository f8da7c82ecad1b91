"""Writes tests/data: what other libraries compute of the problems below (vectors.py says how it is stored).

    python tests/support/record_vectors.py --source torch
    python tests/support/record_vectors.py --source onnxruntime
    python tests/support/record_vectors.py --source cudnn          (on a machine with an NVIDIA GPU)

Each run replaces the files of its source. cuDNN's options that it refuses on a device are named and left out.
"""

import argparse
from datetime import date
from pathlib import Path

import numpy as np

import torch_peer
import vectors
from numbarnn.bench.peers import cudnn
from numbarnn.common.precision import HALVES, numpy_dtype

CELLS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
UNSORTED, WITH_ZERO, DESCENDING = (2, 4, 1), (2, 0, 4), (4, 3, 1)
BOTH_WAYS = dict(num_layers=2, bidirectional=True)


# ------------------------------------------------------------------------------------------------------------- PyTorch
def torch_problems():
    """All options that torch.nn has."""
    for cell in CELLS:
        yield vectors.draw(f"torch-{cell}", cell, T=5)
        yield vectors.draw(f"torch-{cell}-stack-no_bias", cell, **BOTH_WAYS, bias=False)
        yield vectors.draw(f"torch-{cell}-packed", cell, **BOTH_WAYS, lengths=UNSORTED, padding_value=-1.5)
        yield vectors.draw(f"torch-{cell}-no_state", cell, state=False, gradients=False, bidirectional=True, T=1, B=2)
    yield vectors.draw("torch-lstm-projection", "lstm", **BOTH_WAYS, proj_size=2)
    yield vectors.draw("torch-lstm-projection-packed", "lstm", proj_size=1, num_layers=3, lengths=UNSORTED)


def run_torch(recording, dtype):
    """Quantity -> what torch.nn's layer computes on the CPU."""
    import torch

    problem = vectors.Problem(recording, dtype)
    return problem.by_quantity(torch_peer.values(torch, problem))


def torch_source():
    import torch

    return f"PyTorch {torch.__version__.partition('+')[0]} CPU"


# --------------------------------------------------------------------------------------------------------- onnxruntime
ONNX_GATES = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn_tanh": (0,), "rnn_relu": (0,)}  # i o f c; z r h
ONNX_OPERATORS = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}


def onnx_problems():
    """One node each, forward only, in float32: all that onnxruntime's CPU kernels have. Of a sequence of length 0 it
    returns zeros as the final state, so there is none."""
    for cell in CELLS:
        yield vectors.draw(f"onnxruntime-{cell}", cell, T=5)
        yield vectors.draw(f"onnxruntime-{cell}-no_bias", cell, bias=False, state=False)
        yield vectors.draw(f"onnxruntime-{cell}-lengths", cell, bidirectional=True, lengths=UNSORTED)


def run_onnxruntime(recording, dtype):
    """Quantity -> what onnxruntime's node computes on the CPU."""
    import onnxruntime
    from onnx import TensorProto, helper

    inputs, parameters = recording.cast(dtype)
    o, order = recording.layout, list(ONNX_GATES[recording.cell])

    def stacked(kind):
        """(D, G*H, ...) of a kind of parameter, gates in ONNX's order."""
        arrays = [parameters[f"{kind}_l0{suffix}"] for suffix in ("", "_reverse")[: o.directions]]
        gates = [a.reshape(o.gates, o.hidden_size, *a.shape[1:])[order].reshape(a.shape) for a in arrays]
        return np.stack(gates)

    feeds = {"x": inputs["x"], "W": stacked("weight_ih"), "R": stacked("weight_hh")}
    feeds |= {"B": np.concatenate([stacked("bias_ih"), stacked("bias_hh")], axis=1)} if o.bias else {}
    feeds |= {"lengths": np.array(recording.lengths, np.int32)} if recording.lengths else {}
    feeds |= {name: inputs[name] for name in ("hx", "cx") if name in recording.inputs}
    names = [name if name in feeds else "" for name in ("x", "W", "R", "B", "lengths", "hx", *(["cx"] * o.has_c))]
    attributes = {"gru": {"linear_before_reset": 1}, "rnn_relu": {"activations": ["Relu"] * o.directions}}
    outputs = list(vectors.OUTPUTS[: 2 + o.has_c])
    node = helper.make_node(
        ONNX_OPERATORS[o.cell], names, outputs, hidden_size=o.hidden_size,
        direction="bidirectional" if o.bidirectional else "forward", **attributes.get(o.cell, {}),
    )  # fmt: skip
    kinds = {name: TensorProto.INT32 if name == "lengths" else TensorProto.FLOAT for name in feeds}
    given = [helper.make_tensor_value_info(name, kinds[name], array.shape) for name, array in feeds.items()]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph([node], "one_layer", given, made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    values = dict(zip(outputs, session.run(None, feeds), strict=True))
    y = values["y"]  # (T, D, B, H)
    return values | {"y": np.ascontiguousarray(y.swapaxes(1, 2)).reshape(*y.shape[::2], -1)}


def onnxruntime_source():
    import onnxruntime

    return f"onnxruntime {onnxruntime.__version__} CPU"


# --------------------------------------------------------------------------------------------------------------- cuDNN
def cudnn_problems():
    """All options that cuDNN has."""
    for cell in CELLS:
        yield vectors.draw(f"cudnn-{cell}", cell, T=5)
        yield vectors.draw(f"cudnn-{cell}-stack-no_bias", cell, **BOTH_WAYS, bias=False)
        yield vectors.draw(f"cudnn-{cell}-lengths", cell, **BOTH_WAYS, lengths=UNSORTED, padding_value=-1.5)
        yield vectors.draw(f"cudnn-{cell}-skip", cell, hidden_size=2, num_layers=2, input_mode="skip")
        for bias in ("input", "recurrent"):
            yield vectors.draw(f"cudnn-{cell}-{bias}_bias", cell, bias=bias)
    yield vectors.draw("cudnn-lstm-zero_length", "lstm", bidirectional=True, lengths=WITH_ZERO)
    yield vectors.draw("cudnn-gru-no_state", "gru", state=False, gradients=False, bidirectional=True, T=1, B=2)
    yield vectors.draw("cudnn-lstm-projection", "lstm", **BOTH_WAYS, proj_size=2)
    yield vectors.draw("cudnn-lstm-projection-lengths", "lstm", num_layers=2, proj_size=1, lengths=DESCENDING)
    yield vectors.draw("cudnn-lstm-clip", "lstm", num_layers=2, cell_clip=(-0.25, 0.375))
    yield vectors.draw(
        "cudnn-lstm-clip-everything", "lstm", hidden_size=2, **BOTH_WAYS, cell_clip=0.5, input_mode="skip",
        bias="input", proj_size=1, lengths=UNSORTED, padding_value=0.5,
    )  # fmt: skip


def run_cudnn(recording, dtype, session=None):
    """Quantity -> what cuDNN computes, its standard algorithm, float32 without TF32; dx in padding as 0."""
    inputs, parameters = recording.cast(dtype)
    chosen = {name: getattr(recording.layout, name) for name in vectors.LAYER_OPTIONS}
    o = recording.layout
    rnn = cudnn.Rnn(o.cell, o.input_size, o.hidden_size, dtype=dtype, session=session, **chosen)
    states, gradients = (tuple(map(inputs.get, names)) for names in (("hx", "cx"), ("dy", "dhy", "dcy")))
    options = recording.lengths, recording.padding_value
    values = rnn.call(inputs["x"], states, parameters, gradients, *options).results()
    values["dx"][~recording.valid] = 0
    return values | rnn.split(values.pop("dw"))


def cudnn_dtypes(recording):
    """A ReLU or a clip may fall on the other side of its kink in 16 bits, with another gradient."""
    kinked = recording.cell == "rnn_relu" or "cell_clip" in recording.options
    return ("float64", "float32", *(() if kinked else HALVES))


# ------------------------------------------------------------------------------------------------------------ recording
SOURCES = {
    "torch": (torch_problems, run_torch, torch_source, lambda recording: ("float64", "float32")),
    "onnxruntime": (onnx_problems, run_onnxruntime, onnxruntime_source, lambda recording: ("float32",)),
    "cudnn": (cudnn_problems, run_cudnn, lambda: str(cudnn.default_session()), cudnn_dtypes),
}


def record(source, folder):
    """Replace a source's files in a folder; returns their names."""
    problems, run, name, dtypes = SOURCES[source]
    old, written = set(Path(folder).glob(f"{source}-*.npz")), []
    for recording in problems():
        recording.source = f"{name()}, {date.today()}"
        for dtype in dtypes(recording):
            try:
                values = run(recording, dtype)
            except cudnn.CudnnError as error:
                print(f"{recording.name} {dtype}: refused: {error}")
                continue
            recording.results[dtype] = {key: np.asarray(value, numpy_dtype(dtype)) for key, value in values.items()}
        if recording.results:
            vectors.write(recording, folder)
            written.append(Path(folder) / f"{recording.name}.npz")
    for file in old - set(written):
        file.unlink()
    return written


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", choices=SOURCES, required=True)
    parser.add_argument("--out", type=Path, default=vectors.FOLDER)
    arguments = parser.parse_args()
    files = record(arguments.source, arguments.out)
    print(f"{len(files)} files, {sum(file.stat().st_size for file in files) / 1024:.0f} KB in {arguments.out}")
