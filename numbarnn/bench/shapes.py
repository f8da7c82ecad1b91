"""Passes, shapes as command-line arguments, and named sets of shapes, for `numbarnn bench`."""

import argparse
from functools import partial
from typing import NamedTuple

# ------------------------------------------------------------------------------------ passes, by their names in records
FORWARD, TRAINING, STEP = "forward", "forward+backward", "one step"
FORWARD_TRAINING, BACKWARD = "forward in training", "backward"
BACKWARD_DATA, BACKWARD_WEIGHTS = "backward data", "backward weights"
WHOLE = (FORWARD, TRAINING)  # the rows of a usual case
APART = (FORWARD, FORWARD_TRAINING, BACKWARD_DATA, BACKWARD_WEIGHTS, BACKWARD)
SHORT = {
    FORWARD: "fwd", TRAINING: "fwd+bwd", FORWARD_TRAINING: "fwd train", BACKWARD_DATA: "bwd data",
    BACKWARD_WEIGHTS: "bwd weights", BACKWARD: "bwd", STEP: "step",
}  # fmt: skip
# The products of a pass, as multiples of forward's. The weights' gradients alone need backward's products too.
PRODUCTS = {FORWARD: 1, TRAINING: 3, FORWARD_TRAINING: 1, BACKWARD_DATA: 1, BACKWARD_WEIGHTS: 2, BACKWARD: 2, STEP: 1}


def gradients_of_pass(what):
    """Return the gradients that a pass computes, as `need` of `Recurrent.backward`."""
    gradients = {BACKWARD_DATA: ("x",), BACKWARD_WEIGHTS: ("weights",)}
    return gradients.get(what, ("x", "weights") if what in (TRAINING, BACKWARD) else ())


def quantities(what, parameters):
    """Return the names of a pass's results. parameters: their names."""
    need, outputs = gradients_of_pass(what), ("y", "hy", "cy") if what in (*WHOLE, FORWARD_TRAINING, STEP) else ()
    return {*outputs, *(("dx", "dhx", "dcx") if "x" in need else ()), *(parameters if "weights" in need else ())}


# -------------------------------------------------------------------------------------------------------------- shapes
# Words of a shape behind its sizes -> options of a `cases.Case`.
FORMS = {"bidirectional": {"bidirectional": True}, "lengths": {"lengths": "half"}}


class Shape(NamedTuple):
    """Sizes of a case with layers of one size, and words of FORMS."""

    T: int
    B: int
    I: int  # noqa: E741
    H: int
    L: int
    form: tuple[str, ...] = ()

    def __str__(self):
        return ",".join([*map(str, self[:5]), *self.form])

    @property
    def sizes(self):
        return dict(zip("TBIHL", self, strict=False))

    @property
    def options(self):
        """Options of a `cases.Case`."""
        return {name: value for word in self.form for name, value in FORMS[word].items()}


def parse_shape(text, forms=tuple(FORMS)):
    """Parse a Shape (an argparse type): "25,16,512,512,1" or, with a form, "50,16,512,512,1,bidirectional"."""
    expected = "T,B,I,H,L, five whole numbers of at least 1 such as 25,16,512,512,1"
    expected += f", and perhaps words of {', '.join(forms)};" if forms else ";"
    parts = [part.strip() for part in text.split(",")]
    words, sizes = tuple(parts[5:]), [part for part in parts[:5] if part.isdecimal() and int(part)]
    if len(sizes) != 5 or len(set(words)) < len(words) or not set(words) <= set(forms):
        raise argparse.ArgumentTypeError(f"expected {expected} got {text!r}")
    return Shape(*map(int, sizes), words)


parse_sizes = partial(parse_shape, forms=())  # of five sizes alone


def shapes(text):
    return tuple(map(parse_shape, text.split()))


# name -> shapes, of any cell
SETS = {
    "default": shapes(
        "25,16,512,512,1 50,64,512,512,1 25,32,1024,1024,1 100,1,256,256,1 8,128,1024,1024,3 3,1,255,20,2 "
        "1,1,512,512,1 50,32,128,128,2"
    ),
    "quick": shapes("25,16,512,512,1 100,1,256,256,1 3,1,255,20,2 1,1,512,512,1 50,32,128,128,2"),
    "stream": shapes("1,1,64,128,1 1,1,256,256,1 1,1,512,512,1"),  # one step, for `--stream`
    "schedules": shapes(  # where schedules differ: long or short, one layer or several
        "1024,16,768,768,1 25,16,512,512,1 25,32,512,512,1 25,64,512,512,1 25,64,1024,1024,1 150,16,256,256,1 "
        "100,64,512,512,4 8,128,1024,1024,3"
    ),
    # Appleyard, Kocisky and Blunsom 2016 (arXiv:1604.01946): four layers of an LSTM. FlashRNN (arXiv:2412.07752): one
    # layer, long sequences. A forum's question: three layers, batch 128.
    "published": shapes("100,64,512,512,4 1024,16,768,768,1 8,128,1024,1024,3"),
    # Braun 2018 (arXiv:1806.01818; github.com/stefbraun/rnn_benchmarks): 1x320/CE-short, 1x320/CE-long, 4x320/CE-long,
    # 4x320/CTC-long; speech of 123 features. The paper's times include a dense layer, the loss and an optimizer.
    "frameworks": shapes(
        "100,64,123,320,1 1000,32,123,320,1 1000,32,123,320,4,bidirectional 1000,32,123,320,4,bidirectional,lengths"
    ),
}


def _deepbench(*groups):
    """Return shapes of DeepBench (code/kernels/rnn_problems.h): L = 1, I = H. groups: hidden sizes, batches, steps."""
    return tuple(
        Shape(T, B, H, H, 1) for sizes, batches, steps in groups for H in sizes for B in batches for T in steps
    )


_LSTM, _GRU = (512, 1024, 2048), (2816, 2048, 1536, 2560)
_GRU_STEPS = (1500, 750, 375, 187)
# DeepBench's problems: set -> cell -> shapes. Its "vanilla" is CUDNN_RNN_RELU.
DEEPBENCH = {
    "deepbench-train": {
        "rnn_relu": _deepbench(((1760, 2048, 2560), (16, 32, 64, 128), (50,))),
        "lstm": _deepbench(
            ((*_LSTM, 4096), (16, 32, 64, 128), (25,)), ((1536,), (8, 16, 32), (50,)), ((256,), (16, 32, 64), (150,))
        ),
        "gru": _deepbench((_GRU, (32,), _GRU_STEPS), ((512,), (32,), (1,)), ((1024,), (32, 64), (1500,))),
    },
    "deepbench-server": {
        "lstm": _deepbench((_LSTM, (1, 2, 4), (25,)), ((1536,), (1, 2, 4), (50,)), ((256,), (1, 2, 4), (150,))),
        "gru": _deepbench((_GRU, (1, 2, 4), _GRU_STEPS), ((512,), (1, 2, 4), (1,)), ((1024,), (1, 2, 4), (1500,))),
    },
    "deepbench-device": {
        "rnn_relu": _deepbench(((32,), (1,), (672,)), ((64,), (1,), (96,))),
        "lstm": _deepbench(((256,), (1,), (150,))),
    },
}
# Set -> (input mode, passes): DeepBench leaves the input product out (CUDNN_SKIP_INPUT).
SEMANTICS = {name: ("skip", APART if name == "deepbench-train" else (FORWARD,)) for name in DEEPBENCH}

# Words of --tf32 -> layers' `allow_tf32`; and the name of float32 with it.
TF32, TF32_NAMES = {"off": False, "on": True, "3x": "3x"}, {False: "", True: "TF32", "3x": "3xTF32"}


def with_tf32(dtype, tf32, between=" "):
    """Return a dtype's name with that of an `allow_tf32`, such as "float32 TF32"."""
    return between.join(filter(None, [dtype, TF32_NAMES[tf32]]))
