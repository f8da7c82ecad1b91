"""cuDNN, called directly, on instances of `cases`: its results in the instance's dtype, forward and backward.

Layers of one size are one network of cuDNN's, as its users have it. Where sizes differ, or dropout masks are given
(cuDNN draws its own), each layer is a network of its own, and NumPy multiplies by the masks between them. cuDNN gets no
padding (zeros stand there), and of its dx only what is no padding is taken. float32 is computed without TF32.

As contenders of `numbarnn bench` its algorithms are called directly, with nothing of a framework around them.
"""

from contextlib import suppress
from functools import partial

import numpy as np

from numbarnn.bench.cases import sequences
from numbarnn.bench.cases.cases import PEERS_CELLS, layer_of, pack_states, renamed
from numbarnn.bench.cases.passes import BACKWARD, BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD, FORWARD_TRAINING
from numbarnn.bench.peers import cudnn
from numbarnn.bench.peers.contender import Contender, made_again
from numbarnn.bench.peers.cudnn import rnn
from numbarnn.bench.peers.cudnn.options import ALGORITHMS

# Math types of cuDNN by whether float32 may be rounded: without TF32; with, where "default" is TF32 (as PyTorch asks
# for it), and the other one is cuDNN's conversion to float16.
FLOAT32_MATHS = {False: ("fma",), True: ("default", "tensor_op_allow_conversion")}
# Sequences of one length lie in memory alike in both. Packed, there is no padding to look for; PyTorch asks for the
# other one.
LAYOUTS = "seq_major_packed", "seq_major_unpacked"
PREFIX = "cudnn "
# Passes that are a part of training -> cuDNN's functions.
PARTS = {
    FORWARD_TRAINING: (rnn.FORWARD,), BACKWARD_DATA: (rnn.DATA,), BACKWARD_WEIGHTS: (rnn.WEIGHTS,),
    BACKWARD: (rnn.DATA, rnn.WEIGHTS),
}  # fmt: skip
OTHER_FORM = "it is called directly for stacks over sequences of one length"
LACKS = ("resets",)  # options of a case that cuDNN does not have


class Refused(RuntimeError):
    """cuDNN does not run a case; the message has its own words, or names the option that it does not have."""


def cudnn_results(instance, masks=None):
    """cuDNN's results by quantity, as `peers` describes them; y and the states alone where the case is forward only.

    Args:
        masks: what the outputs of all layers but the last are multiplied by: a list of (T, B, D*H_l), or None.

    Raises:
        Refused: cuDNN lacks an option, or refuses what it was given, or fails.
    """
    lacks = [name for name in LACKS if name in instance.case.uses]
    lacks += [] if instance.case.cell in PEERS_CELLS else [instance.case.cell]
    if lacks:
        raise Refused(f"it has no {', '.join(lacks)}")
    try:
        return run(instance, masks)
    except cudnn.CudnnError as error:
        raise Refused(str(error)) from error


def run(instance, masks):
    """`cudnn_results` of a case whose options cuDNN has."""
    case, one_by_one = instance.case, masks is not None or not instance.case.equal_layers
    layers = [(k,) for k in range(case.L)] if one_by_one else [range(case.L)]
    networks = [CudnnLayers(instance, own) for own in layers]
    x, hy, cy = sequences.filled(instance.x, instance.padding), [], []
    for number, network in enumerate(networks):
        y, h, c = network.forward(x)
        hy += h
        cy += c
        x = sequences.filled(y if masks is None else masked(y, masks, number), instance.padding)
    results = {"y": y, "hy": hy} | ({"cy": cy} if case.cell == "lstm" else {})
    if case.forward_only:
        return results
    dy, dhx, dcx = sequences.filled(instance.dy, instance.padding), [], []
    for number, network in reversed(list(enumerate(networks))):
        dx, dh, dc, parameters = network.backward(dy)
        dhx, dcx = dh + dhx, dc + dcx
        results |= parameters
        dx = sequences.filled(dx, instance.padding)
        dy = dx if masks is None or number == 0 else masked(dx, masks, number - 1)
    return results | {"dx": dx, "dhx": dhx} | ({"dcx": dcx} if case.cell == "lstm" else {})


def masked(array, masks, layer):
    """An array times the masks of a layer, if it has some, in the array's dtype."""
    return (array * np.asarray(masks[layer], array.dtype)) if layer < len(masks) else array


class CudnnLayers:
    """Consecutive layers of an instance, of one size, as one network of cuDNN's; chosen: what it leaves open."""

    def __init__(self, instance, layers, **chosen):
        case = instance.case
        self.instance, self.layers = instance, layers
        sizes = case.layer_input_size(layers[0]), case.hidden[layers[0]], len(layers)
        names = ["bidirectional", "bias", "proj_size", "dtype"]
        names += ["cell_clip", "clip_propagate_nan"] if case.cell_clip else []
        names += ["input_mode"] if layers[0] == 0 else []
        self.rnn = cudnn.Rnn(case.cell, *sizes, **{name: getattr(case, name) for name in names}, **chosen)

    def forward(self, x):
        """y, and lists of hy and cy, of which one is empty where the cell has no c."""
        instance, case = self.instance, self.instance.case
        given = x, self.states(instance.h0), self.states(instance.c0), self.weights()
        options = {"lengths": instance.lengths, "padding_value": case.padding_value, "training": True}
        y, hy, cy, self.reserve = self.rnn.forward(*given, **options)
        return y, self.unpacked(hy), self.unpacked(cy)

    def backward(self, dy):
        """dx, lists of dhx and dcx, and the gradients of the parameters by the instance's names."""
        instance = self.instance
        dhy, dcy = self.states(instance.dhy), self.states(instance.dcy)
        dx, dhx, dcx = self.rnn.backward_data(self.reserve, dy, dhy, dcy)
        gradients = self.rnn.split(self.rnn.backward_weights(self.reserve))
        parameters = {name: gradients[own] for name, own in self.names().items()}
        return dx, self.unpacked(dhx), self.unpacked(dcx), parameters

    def prepare(self, what):
        """A `cudnn.Prepared` of one of `passes` of an instance without lengths.

        As all sequences have T steps, packed ones are the same numbers in the same places, without the axis of time.
        """
        instance = self.instance
        x, dy, lengths = instance.x, instance.dy, None
        if self.rnn.options.layout == "seq_major_packed":
            x, dy, lengths = x.reshape(-1, x.shape[2]), dy.reshape(-1, dy.shape[2]), (len(x),) * x.shape[1]
        given = {"dy": dy, "dhy": self.states(instance.dhy), "dcy": self.states(instance.dcy)}
        given = given if what != FORWARD else {}
        states = self.states(instance.h0), self.states(instance.c0)
        prepared = self.rnn.prepare(x, *states, self.weights(), **given, lengths=lengths)
        if what in PARTS:
            prepared.choose(*PARTS[what])
        return prepared

    def named_results(self, found):
        """What a `cudnn.Prepared` of all layers gives, by the quantities of `peers`."""
        axes = self.instance.x.shape[:2]
        results = {name: found[name].reshape(*axes, -1) for name in ("y", "dx") if name in found}
        results |= {name: self.unpacked(found[name]) for name in ("hy", "cy", "dhx", "dcx") if name in found}
        return results | (self.rnn.split(found["dw"]) if "dw" in found else {})

    def weights(self):
        """The parameters of these layers by the network's names."""
        return {own: self.instance.parameters[name] for name, own in self.names().items()}

    def names(self):
        """The instance's name -> the network's, of the parameters of these layers."""
        own = [name for name in self.instance.parameters if layer_of(name) in self.layers]
        return {name: renamed(name, -self.layers[0]) for name in own}

    def states(self, states):
        """Per-layer states of an instance as cuDNN takes those of these layers: (layers * D, B, H); None stays None."""
        return None if states is None else pack_states([states[k] for k in self.layers])

    def unpacked(self, states):
        """The reverse of `states`; an empty list for None."""
        if states is None:
            return []
        D = self.instance.case.D
        return [states[k * D : (k + 1) * D] for k in range(len(self.layers))]


# ---- as contenders ----
def variants(case, algorithms=tuple(ALGORITHMS)):
    """Contender's name -> what cuDNN is asked for, of these algorithms and every math type that fits a case's dtype."""
    maths = FLOAT32_MATHS[case.allow_tf32 is True] if case.dtype == "float32" else (None,)  # None: see `cudnn.Options`
    return {
        f"{PREFIX}{algorithm}{'' if math == maths[0] else ' ' + math}": {"algorithm": algorithm, "math_type": math}
        for math in maths
        for algorithm in algorithms
    }


def cudnn_contenders(instance, what, algorithms=tuple(ALGORITHMS)):
    """(contenders, name -> why there is none): cuDNN's algorithms at one of `passes`; layers have one size."""
    if reason := cudnn.why_not() or OTHER_FORM * bool(instance.case.chain or instance.case.lengths):
        return [], {PREFIX.strip(): reason}
    contenders, refusals = [], {}
    for name, chosen in variants(instance.case, algorithms).items():
        try:
            contenders.append(made_again(partial(first_that_runs, instance, what, name, chosen)))
        except RuntimeError as refusal:  # CudnnError among them, and what the driver says when memory runs out
            refusals[name] = str(refusal)
    return contenders, refusals


def first_that_runs(instance, what, name, chosen):
    """A contender with the first layout that cuDNN takes; else it raises what cuDNN said to that."""
    packed, unpacked = LAYOUTS
    try:
        return cudnn_contender(instance, what, name, chosen | {"layout": packed})
    except cudnn.CudnnError as refusal:
        if refusal.refused:
            with suppress(RuntimeError):
                return cudnn_contender(instance, what, name, chosen | {"layout": unpacked})
        raise


def cudnn_contender(instance, what, name, chosen):
    """One algorithm, with its weights packed and everything else prepared; RuntimeError where cuDNN refuses."""
    network = CudnnLayers(instance, range(instance.case.L), **chosen)
    prepared = network.prepare(what)

    how = "one CUDA graph"
    if prepared.why_no_graph is not None:
        how = f"call by call, as it cannot be a CUDA graph: {prepared.why_no_graph}"
    results = lambda _: network.named_results(prepared.results())  # noqa: E731
    return Contender(name, prepared.run, results, network.rnn.synchronize, note=f"{chosen['layout']}, {how}")
