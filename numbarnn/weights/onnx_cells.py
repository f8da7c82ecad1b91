"""Make cells for ONNX nodes and Keras layers with options that the built-in cells lack.

Equations come from https://onnx.ai/onnx/operators/onnx__LSTM.html (and GRU, RNN), with PyTorch's names of gates: g is
the gate that ONNX calls c, n the one that ONNX calls h. `clip` bounds the inputs of all activations but the LSTM's
last, as in onnxruntime; the specification is unclear.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from numbarnn import cells
from numbarnn.cells import functions
from numbarnn.cells.functions import where
from numbarnn.cells.tracing import cell

LIKE = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn_tanh"}  # operator -> a built-in cell that has its gates
PEEPHOLES = ("peep_i", "peep_o", "peep_f")  # in ONNX' order
DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
# Activation -> (function of x, alpha and beta; default alpha; default beta). None is no default: onnxruntime takes 0,
# the specification 1 (ThresholdedRelu) or nothing.
ACTIVATIONS = {
    "Relu": (lambda x, *_: functions.relu(x),),
    "Tanh": (lambda x, *_: functions.tanh(x),),
    "Sigmoid": (lambda x, *_: functions.sigmoid(x),),
    "Softsign": (lambda x, *_: functions.softsign(x),),
    "Softplus": (lambda x, *_: functions.softplus(x),),
    "LeakyRelu": (lambda x, alpha: functions.leaky_relu(x, alpha), 0.01),
    "ThresholdedRelu": (lambda x, alpha: where(x >= alpha, x, 0.0), None),
    "Elu": (lambda x, alpha: functions.elu(x, alpha), 1.0),
    "HardSigmoid": (lambda x, alpha, beta: functions.clip(alpha * x + beta, 0.0, 1.0), 0.2, 0.5),
    "Affine": (lambda x, alpha, beta: alpha * x + beta, None, None),
    "ScaledTanh": (lambda x, alpha, beta: alpha * functions.tanh(beta * x), None, None),
}

# Activations that only Keras has, by its names.
KERAS_ALONE = {
    "celu": (functions.elu,), "exponential": (functions.exp,), "gelu": (functions.gelu,),
    "hard_silu": (lambda x: x * functions.hard_sigmoid(x),), "hard_tanh": (functions.hard_tanh,),
    "log_sigmoid": (functions.log_sigmoid,), "mish": (functions.mish,),
    "relu6": (lambda x: functions.clip(x, 0.0, 6.0),), "selu": (functions.selu,), "silu": (functions.silu,),
}  # fmt: skip
KERAS = {name: (name,) for name in KERAS_ALONE} | {
    "elu": ("Elu", 1.0), "hard_sigmoid_keras2": ("HardSigmoid", 0.2, 0.5), "hard_swish": ("hard_silu",),
    "hard_sigmoid_keras3": ("HardSigmoid", 1 / 6, 0.5), "leaky_relu": ("LeakyRelu", 0.2), "relu": ("Relu",),
    "linear": ("Affine", 1.0, 0.0), "sigmoid": ("Sigmoid",), "softplus": ("Softplus",), "softsign": ("Softsign",),
    "swish": ("silu",), "tanh": ("Tanh",),
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """What a node computes, without its weights and direction.

    Attributes:
        operator: "LSTM", "GRU" or "RNN". activations: (name, alpha, beta) of each; those without alpha are shorter.
        clip: bound of the inputs of the gates' activations, or None. bias: whether it has biases.
        input_forget, peepholes: whether an LSTM's f is 1 - i, and whether its gates see c.
        linear_before_reset: whether a GRU applies the reset gate after the product.
    """

    operator: str
    activations: tuple[tuple, ...]
    clip: float | None = None
    input_forget: bool = False
    linear_before_reset: bool = False
    peepholes: bool = False
    bias: bool = True

    like = property(lambda self: LIKE[self.operator], doc="The name of a built-in cell that has its gates.")
    gates = property(lambda self: cells.get(self.like).gates)
    per_unit = property(lambda self: PEEPHOLES if self.peepholes else ())

    def named(self, arrays):
        """Turn one direction's arrays (`NetworkData.parts`) into the arrays of the cell's equations, by name.

        A gate's two biases are added, except where the reset gate multiplies one of them."""

        def by_gate(kind):
            return dict(zip(self.gates, np.split(arrays[kind], len(self.gates)), strict=True))

        result = {f"{kind}.{gate}": part for kind in "WR" for gate, part in by_gate(kind).items()}
        if self.bias:
            of_w, of_r = by_gate("b_w"), by_gate("b_r") if "b_r" in arrays else {}
            if self.linear_before_reset:
                result["b.q"] = of_r.pop("n") if of_r else np.zeros_like(of_w["n"])
            result |= {f"b.{gate}": part + of_r[gate] if gate in of_r else part for gate, part in of_w.items()}
        result |= {name: arrays[name] for name in self.per_unit}
        return {name: array for name, array in result.items() if not (self.input_forget and _of_f(name))}

    def arrays(self, named):
        """Turn the arrays of the cell's equations into one direction's arrays of a `NetworkData`.

        The second bias, and the arrays of f where f is 1 - i, are zeros."""

        def of_gate(name):
            unread = self.input_forget and _of_f(name)
            return np.zeros_like(named[name.replace("f", "i")]) if unread else named[name]

        kinds = {"W": "W", "R": "R"} | ({"b_w": "b"} if self.bias else {})
        result = {
            kind: np.concatenate([of_gate(f"{name}.{gate}") for gate in self.gates]) for kind, name in kinds.items()
        }
        if self.bias:
            result["b_r"] = np.zeros_like(result["b_w"])
            if self.linear_before_reset:
                result["b_r"][-len(named["b.q"]) :] = named["b.q"]
        return result | {name: of_gate(name) for name in self.per_unit}

    def attributes(self, directions):
        """Return the node's attributes, name -> value; ValueError if ONNX lacks an activation."""
        if lacking := [name for name, *_ in self.activations if name not in ACTIVATIONS]:
            raise ValueError(f"ONNX has no activation {lacking[0]!r} in its nodes; it has {', '.join(ACTIVATIONS)}")
        of_all, usual = self.activations * directions, tuple((name,) for name in DEFAULTS[self.operator])
        values = {"clip": self.clip}
        values["activations"] = None if self.activations == usual else [name for name, *_ in of_all]
        for place, name in ((1, "activation_alpha"), (2, "activation_beta")):
            values[name] = [one[place] for one in of_all if len(one) > place] or None
        values["linear_before_reset"] = int(self.linear_before_reset) if self.operator == "GRU" else None
        values["input_forget"] = int(self.input_forget) or None
        return {name: value for name, value in values.items() if value is not None}

    @property
    def name(self):
        options = [str(part) for one in self.activations for part in one]
        options += [f"clip_{self.clip}"] if self.clip is not None else []
        flags = ("input_forget", "linear_before_reset", "peepholes")
        options += [flag for flag in flags if getattr(self, flag)]
        return re.sub(r"\W", "_", "_".join(["onnx", self.operator.lower(), *options]))


# kind of node -> the built-in cell that computes the same
BUILT_IN = {
    Kind("LSTM", (("Sigmoid",), ("Tanh",), ("Tanh",))): "lstm",
    Kind("GRU", (("Sigmoid",), ("Tanh",)), linear_before_reset=True): "gru",
    Kind("GRU", (("Sigmoid",), ("Tanh",))): "gru_reset_before",
    Kind("RNN", (("Tanh",),)): "rnn_tanh",
    Kind("RNN", (("Relu",),)): "rnn_relu",
}


def _of_f(name):
    return name in ("W.f", "R.f", "b.f", "peep_f")


def kind_of(cell):
    """Return the `Kind` of a cell that `cell_of` made, None for other cells."""
    maker, arguments = getattr(cell, "origin", None) or (None, ())
    return arguments[0] if maker is cell_of else None


@cache
def cell_of(kind):
    """Return the cell of a `Kind`, the same object for equal kinds."""
    built = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}[kind.operator](kind, *map(_function_of, kind.activations))
    return replace(built, origin=(cell_of, (kind,)))


def _function_of(activation):
    """Return the function of x of an activation (name, alpha, beta)."""
    name, *constants = activation
    function = (ACTIVATIONS | KERAS_ALONE)[name][0]
    return lambda x: function(x, *constants)


def _terms(kind):
    """Return three functions: bias(p, gate), seen(p, name, c), both 0 if absent, and bounded(x)."""

    def bias(p, gate):
        return getattr(p.b, gate) if kind.bias else 0.0

    def seen(p, name, c):
        return getattr(p, name) * c if kind.peepholes else 0.0

    def bounded(x):
        return x if kind.clip is None else functions.clip(x, -kind.clip, kind.clip)

    return bias, seen, bounded


def _lstm(kind, gate, candidate, output):
    bias, seen, bounded = _terms(kind)

    @cell(name=kind.name)
    def lstm(x, h, c, p):
        i = gate(bounded(p.W.i @ x + p.R.i @ h + seen(p, "peep_i", c) + bias(p, "i")))
        f = 1 - i if kind.input_forget else gate(bounded(p.W.f @ x + p.R.f @ h + seen(p, "peep_f", c) + bias(p, "f")))
        g = candidate(bounded(p.W.g @ x + p.R.g @ h + bias(p, "g")))
        c_new = f * c + i * g
        o = gate(bounded(p.W.o @ x + p.R.o @ h + seen(p, "peep_o", c_new) + bias(p, "o")))
        return o * output(c_new), c_new

    return lstm


def _gru(kind, gate, candidate):
    bias, _, bounded = _terms(kind)

    @cell(name=kind.name)
    def gru(x, h, p):
        r = gate(bounded(p.W.r @ x + p.R.r @ h + bias(p, "r")))
        z = gate(bounded(p.W.z @ x + p.R.z @ h + bias(p, "z")))
        recurrent = r * (p.R.n @ h + bias(p, "q")) if kind.linear_before_reset else p.R.n @ (r * h)
        n = candidate(bounded(p.W.n @ x + recurrent + bias(p, "n")))
        return (1 - z) * n + z * h

    return gru


def _rnn(kind, activation):
    bias, _, bounded = _terms(kind)

    @cell(name=kind.name)
    def rnn(x, h, p):
        return activation(bounded(p.W.h @ x + p.R.h @ h + bias(p, "h")))

    return rnn
