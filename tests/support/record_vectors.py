"""Write tests/data/cudnn-*.npz: what cuDNN computes of the problems below (vectors.py says how it is stored).

    python tests/support/record_vectors.py          (on a machine with an NVIDIA GPU)

Each run replaces the files. Options that cuDNN refuses on a device are named and left out. The files of PyTorch and
onnxruntime were recorded in the same way, once; where these packages are installed, tests compare with them directly.
"""

import argparse
from datetime import date
from pathlib import Path

import numpy as np

import vectors
from numbarnn.bench.peers import cudnn
from numbarnn.common.precision import HALVES, numpy_dtype

CELLS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
UNSORTED, WITH_ZERO, DESCENDING = (2, 4, 1), (2, 0, 4), (4, 3, 1)
BOTH_WAYS = dict(num_layers=2, bidirectional=True)


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
def record(folder, session=None):
    """Replace cuDNN's files in a folder; return their names."""
    old, written = set(Path(folder).glob("cudnn-*.npz")), []
    for recording in cudnn_problems():
        recording.source = f"{session or cudnn.default_session()}, {date.today()}"
        for dtype in cudnn_dtypes(recording):
            try:
                values = run_cudnn(recording, dtype, session)
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
    parser.add_argument("--out", type=Path, default=vectors.FOLDER)
    arguments = parser.parse_args()
    files = record(arguments.out)
    print(f"{len(files)} files, {sum(file.stat().st_size for file in files) / 1024:.0f} KB in {arguments.out}")
