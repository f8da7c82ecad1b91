"""Call cuDNN directly on instances of `cases`, for its results, and to time its algorithms.

Padding in x is set to zero for cuDNN, and padding in its dx is ignored. float32 is computed without TF32.
"""

from contextlib import suppress
from functools import partial

from numbarnn.bench.cases import PEERS_CELLS, filled, pack_states, unpack_states
from numbarnn.bench.peers import cudnn
from numbarnn.bench.peers.contender import Contender, made_again
from numbarnn.bench.peers.cudnn import rnn
from numbarnn.bench.peers.cudnn.descriptors import ALGORITHMS
from numbarnn.bench.shapes import BACKWARD, BACKWARD_DATA, BACKWARD_WEIGHTS, FORWARD, FORWARD_TRAINING

# Whether float32 products may be rounded -> cuDNN's math types: "default" is TF32, as PyTorch sets it, and
# "tensor_op_allow_conversion" converts to float16.
FLOAT32_MATHS = {False: ("fma",), True: ("default", "tensor_op_allow_conversion")}
# Sequences of one length are the same memory in both layouts. PyTorch uses the unpacked one.
PACKED, UNPACKED = "seq_major_packed", "seq_major_unpacked"
PREFIX = "cudnn "
# Pass -> cuDNN's functions, of passes that are a part of training.
PARTS = {
    FORWARD_TRAINING: (rnn.FORWARD,), BACKWARD_DATA: (rnn.DATA,), BACKWARD_WEIGHTS: (rnn.WEIGHTS,),
    BACKWARD: (rnn.DATA, rnn.WEIGHTS),
}  # fmt: skip
OTHER_FORM = "it is called directly for sequences of one length"


class Refused(RuntimeError):
    """cuDNN does not run a case: it lacks an option, or returned an error."""


def cudnn_results(instance, masks=None):
    """Return cuDNN's results by quantity, as in `peers`, without gradients if the case is forward only.

    Raise Refused if cuDNN cannot run the case, such as one with dropout masks."""
    case, padding = instance.case, instance.padding
    lacks = {"resets": case.resets, case.cell: case.cell not in PEERS_CELLS, "given dropout masks": masks is not None}
    lacks |= {"layers of different sizes": not case.equal_layers}
    if any(lacks.values()):
        raise Refused(f"it has no {', '.join(name for name, lacking in lacks.items() if lacking)}")
    try:
        network = CudnnNetwork(instance)
        gradients = None if case.forward_only else (filled(instance.dy, padding), instance.dhy, instance.dcy)
        found = network.results(network.call(filled(instance.x, padding), gradients, instance.lengths))
    except cudnn.CudnnError as error:
        raise Refused(str(error)) from error
    if instance.lengths is not None:
        pass_states(instance, found)
    return found | ({"dx": filled(found["dx"], padding)} if "dx" in found else {})


def pass_states(instance, found):
    """Set the final states of sequences of length zero to their initial states, where cuDNN returns zeros."""
    passed = {"hy": instance.h0, "cy": instance.c0, "dhx": instance.dhy, "dcx": instance.dcy}
    for name in passed.keys() & found.keys():
        for layer, part in enumerate(found[name]):
            if passed[name] is not None:
                part[:, instance.lengths == 0] = passed[name][layer][:, instance.lengths == 0]


class CudnnNetwork:
    """An instance with layers of one size as a network of cuDNN. chosen: further `cudnn.Options`."""

    def __init__(self, instance, **chosen):
        case = instance.case
        names = ["bidirectional", "bias", "proj_size", "dtype", "input_mode"]
        names += ["cell_clip", "clip_propagate_nan"] if case.cell_clip else []
        options = {name: getattr(case, name) for name in names} | chosen
        self.instance, self.rnn = instance, cudnn.Rnn(case.cell, case.input_size, case.hidden[0], case.L, **options)

    def call(self, x, gradients=None, lengths=None):
        """Return a `cudnn.rnn.Call`. gradients: dy, and dhy and dcy per layer."""
        states = map(pack_states, (self.instance.h0, self.instance.c0))
        if gradients is not None:
            gradients = gradients[0], *map(pack_states, gradients[1:])
        options = {"lengths": lengths, "padding_value": self.instance.case.padding_value}
        return self.rnn.call(x, states, self.instance.parameters, gradients, **options)

    def prepare(self, what):
        """Prepare the call of a pass, as one CUDA graph where possible. The instance has no lengths."""
        x, dy, lengths = self.instance.x, self.instance.dy, None
        if self.rnn.options.layout == PACKED:
            x, dy, lengths = x.reshape(-1, x.shape[2]), dy.reshape(-1, dy.shape[2]), (len(x),) * x.shape[1]
        prepared = self.call(x, None if what == FORWARD else (dy, None, None), lengths)
        prepared.choose(*PARTS.get(what, prepared.functions))
        return prepared

    def results(self, call):
        """Return a call's results by quantity."""
        found, axes, case = call.results(), self.instance.x.shape[:2], self.instance.case
        results = {name: found[name].reshape(*axes, -1) for name in ("y", "dx") if name in found}
        states = ("hy", "cy", "dhx", "dcx")
        results |= {name: unpack_states(case, found[name]) for name in states if name in found}
        return results | (self.rnn.split(found["dw"]) if "dw" in found else {})


# ----------------------------------------------------------------------------------------------------------- contenders
def cudnn_contenders(instance, what, algorithms=tuple(ALGORITHMS)):
    """Return cuDNN's algorithms as contenders for a pass, and name -> reason of those that do not run."""
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
            except RuntimeError as refusal:  # CudnnError, or the driver's error when memory runs out
                refusals[name] = str(refusal)
    return contenders, refusals


def first_that_runs(instance, what, name, chosen):
    """Return the contender with the packed layout, or the unpacked one if cuDNN does not support the first."""
    try:
        return cudnn_contender(instance, what, name, chosen | {"layout": PACKED})
    except cudnn.CudnnError as refusal:
        if refusal.refused:
            with suppress(RuntimeError):
                return cudnn_contender(instance, what, name, chosen | {"layout": UNPACKED})
        raise


def cudnn_contender(instance, what, name, chosen):
    """Return the contender of one algorithm. Raise RuntimeError if cuDNN refuses."""
    network = CudnnNetwork(instance, **chosen)
    prepared, how = network.prepare(what), "one CUDA graph"
    if prepared.why_no_graph is not None:
        how = f"call by call, as it cannot be a CUDA graph: {prepared.why_no_graph}"
    results = lambda _: network.results(prepared)  # noqa: E731
    wait = network.rnn.session.device.synchronize
    return Contender(name, prepared.run, results, wait, note=f"{chosen['layout']}, {how}")
