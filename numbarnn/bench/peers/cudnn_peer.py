"""cuDNN, called directly, on instances of `cases`: its results, and its algorithms as contenders.

Layers of one size are one network of cuDNN's, as its users have it. Where sizes differ, or dropout masks are given
(cuDNN draws its own), each layer is a network of its own, and NumPy multiplies by the masks between them. cuDNN gets no
padding (zeros stand there), and of its dx only what is no padding is taken. float32 is computed without TF32.
"""

from contextlib import suppress
from functools import partial

import numpy as np

from numbarnn.bench.cases import PEERS_CELLS, filled, layer_of, pack_states, renamed, unpack_states
from numbarnn.bench.peers import cudnn
from numbarnn.bench.peers.contender import Contender, made_again
from numbarnn.bench.peers.cudnn import rnn
from numbarnn.bench.peers.cudnn.descriptors import ALGORITHMS
from numbarnn.bench.shapes import BACKWARD, BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD, FORWARD_TRAINING

# Math types of cuDNN by whether float32 may be rounded: without TF32; with, where "default" is TF32 (as PyTorch asks
# for it), and the other one is cuDNN's conversion to float16.
FLOAT32_MATHS = {False: ("fma",), True: ("default", "tensor_op_allow_conversion")}
# Sequences of one length lie in memory alike in both. Packed, there is no padding to look for; PyTorch asks for the
# other one.
PACKED, UNPACKED = "seq_major_packed", "seq_major_unpacked"
PREFIX = "cudnn "
# Passes that are a part of training -> cuDNN's functions.
PARTS = {
    FORWARD_TRAINING: (rnn.FORWARD,), BACKWARD_DATA: (rnn.DATA,), BACKWARD_WEIGHTS: (rnn.WEIGHTS,),
    BACKWARD: (rnn.DATA, rnn.WEIGHTS),
}  # fmt: skip
OTHER_FORM = "it is called directly for sequences of one length"


class Refused(RuntimeError):
    """cuDNN does not run a case; the message has its own words, or names the option that it does not have."""


def cudnn_results(instance, masks=None):
    """Return cuDNN's results by quantity, as `peers` describes them; no gradients where the case is forward only.

    masks: what the outputs of all layers but the last are multiplied by: a list of (T, B, D*H_l), or None. Refused:
    cuDNN lacks an option, or refuses what it was given, or fails.
    """
    case = instance.case
    if lacks := ["resets"] * case.resets + [case.cell] * (case.cell not in PEERS_CELLS):
        raise Refused(f"it has no {', '.join(lacks)}")
    try:
        return run(instance, masks or [])
    except cudnn.CudnnError as error:
        raise Refused(str(error)) from error


def run(instance, masks):
    """Return `cudnn_results` of a case whose options cuDNN has; masks: a list, of no dropout an empty one."""
    case, one_by_one = instance.case, masks or not instance.case.equal_layers
    layers = [(k,) for k in range(case.L)] if one_by_one else [range(case.L)]
    networks = [CudnnLayers(instance, own) for own in layers]

    def masked(array, layer):
        if layer in range(len(masks)):
            array = array * np.asarray(masks[layer], array.dtype)
        return filled(array, instance.padding)

    y, results = filled(instance.x, instance.padding), {"hy": [], "cy": []}
    for number, network in enumerate(networks):
        y, hy, cy = network.forward(y if number == 0 else masked(y, number - 1))
        results = {"hy": results["hy"] + hy, "cy": results["cy"] + cy}
    results["y"], dx = y, filled(instance.dy, instance.padding)
    if not case.forward_only:
        results |= {"dhx": [], "dcx": []}
        for number, network in reversed(list(enumerate(networks))):
            dx, dhx, dcx, parameters = network.backward(masked(dx, number) if dx is not None else None)
            results |= parameters | {"dhx": dhx + results["dhx"], "dcx": dcx + results["dcx"]}
        results["dx"] = filled(dx, instance.padding)
    return {name: value for name, value in results.items() if case.has_c or name not in ("cy", "dcx")}


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
        own = [name for name in instance.parameters if layer_of(name) in layers]
        self.names = {name: renamed(name, -layers[0]) for name in own}  # the instance's -> the network's
        self.weights = {name: instance.parameters[own] for own, name in self.names.items()}

    def forward(self, x):
        """Return y, and lists of hy and cy, of which one is empty where the cell has no c."""
        instance, states = self.instance, self._states(self.instance.h0, self.instance.c0)
        options = {"lengths": instance.lengths, "padding_value": instance.case.padding_value}
        y, hy, cy, self.reserve = self.rnn.forward(x, *states, self.weights, **options)
        return y, *self._unpacked(hy, cy)

    def backward(self, dy):
        """Return dx, lists of dhx and dcx, and the gradients of the parameters by the instance's names."""
        states = self._states(self.instance.dhy, self.instance.dcy)
        dx, *states = self.rnn.backward_data(self.reserve, dy, *states)
        gradients = self.rnn.split(self.rnn.backward_weights(self.reserve))
        return dx, *self._unpacked(*states), {name: gradients[own] for name, own in self.names.items()}

    def prepare(self, what):
        """Return a prepared `cudnn.rnn.Call` of one of `passes` of an instance without lengths.

        As all sequences have T steps, packed ones are the same numbers in the same places, without the axis of time.
        """
        instance = self.instance
        x, dy, lengths = instance.x, instance.dy, None
        if self.rnn.options.layout == PACKED:
            x, dy, lengths = x.reshape(-1, x.shape[2]), dy.reshape(-1, dy.shape[2]), (len(x),) * x.shape[1]
        given = {} if what == FORWARD else {"dy": dy}
        states = self._states(instance.h0, instance.c0)
        prepared = self.rnn.prepare(x, *states, self.weights, **given, lengths=lengths)
        if what in PARTS:
            prepared.choose(*PARTS[what])
        return prepared

    def named_results(self, found):
        """Return what a prepared call of all layers gives, by the quantities of `peers`."""
        axes, case = self.instance.x.shape[:2], self.instance.case
        results = {name: found[name].reshape(*axes, -1) for name in ("y", "dx") if name in found}
        states = ("hy", "cy", "dhx", "dcx")
        results |= {name: unpack_states(case, found[name]) for name in states if name in found}
        return results | (self.rnn.split(found["dw"]) if "dw" in found else {})

    def _states(self, *states):
        """Return per-layer states of an instance as cuDNN takes them: (layers * D, B, H); None stays None."""
        return [one and pack_states([one[k] for k in self.layers]) for one in states]

    def _unpacked(self, *states):
        """Return the reverse of `_states`; an empty list for None."""
        D = self.instance.case.D
        return [[] if one is None else [one[k * D : (k + 1) * D] for k in range(len(self.layers))] for one in states]


# -------------------------------------------------------------------------------------------------------- as contenders
def cudnn_contenders(instance, what, algorithms=tuple(ALGORITHMS)):
    """Return (contenders, name -> why there is none): cuDNN's algorithms at one of `passes`; layers have one size."""
    case = instance.case
    if reason := cudnn.why_not() or OTHER_FORM * bool(case.lengths):
        return [], {PREFIX.strip(): reason}
    contenders, refusals = [], {}
    maths = FLOAT32_MATHS[case.allow_tf32 is True] if case.dtype == "float32" else (None,)  # None: see `cudnn.Options`
    for math in maths:
        for algorithm in algorithms:
            name = f"{PREFIX}{algorithm}{'' if math == maths[0] else ' ' + math}"
            chosen = {"algorithm": algorithm, "math_type": math}
            try:
                contenders.append(made_again(partial(first_that_runs, instance, what, name, chosen)))
            except RuntimeError as refusal:  # CudnnError among them, and what the driver says when memory runs out
                refusals[name] = str(refusal)
    return contenders, refusals


def first_that_runs(instance, what, name, chosen):
    """Return a contender with the first layout that cuDNN takes; else raise what cuDNN said to that."""
    try:
        return cudnn_contender(instance, what, name, chosen | {"layout": PACKED})
    except cudnn.CudnnError as refusal:
        if refusal.refused:
            with suppress(RuntimeError):
                return cudnn_contender(instance, what, name, chosen | {"layout": UNPACKED})
        raise


def cudnn_contender(instance, what, name, chosen):
    """Return one algorithm, with its weights packed and everything else prepared; RuntimeError if cuDNN refuses."""
    network = CudnnLayers(instance, range(instance.case.L), **chosen)
    prepared, how = network.prepare(what), "one CUDA graph"
    if prepared.why_no_graph is not None:
        how = f"call by call, as it cannot be a CUDA graph: {prepared.why_no_graph}"
    results = lambda _: network.named_results(prepared.results())  # noqa: E731
    wait = network.rnn.session.device.synchronize
    return Contender(name, prepared.run, results, wait, note=f"{chosen['layout']}, {how}")
