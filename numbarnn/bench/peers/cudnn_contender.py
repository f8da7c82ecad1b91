"""cuDNN's algorithms as contenders of `numbarnn bench`: called directly, with nothing of a framework around them."""

from numbarnn.bench.peers.contender import Contender
from numbarnn.bench.peers.cudnn_peer import CudnnLayers

# Math types of cuDNN by whether float32 may be rounded: without TF32; with, where "default" is TF32 (as PyTorch asks
# for it), and the other one is cuDNN's conversion to float16.
FLOAT32_MATHS = {False: ("fma",), True: ("default", "tensor_op_allow_conversion")}
# Sequences of one length lie in memory alike in both. Packed, there is no padding to look for; PyTorch asks for the
# other one.
LAYOUTS = "seq_major_packed", "seq_major_unpacked"
PREFIX = "cudnn "


def variants(case):
    """Contender's name -> what cuDNN is asked for, of every algorithm and math type that fits a case's dtype."""
    from numbarnn.bench.peers.cudnn.options import ALGORITHMS

    maths = FLOAT32_MATHS[case.allow_tf32] if case.dtype == "float32" else (None,)  # None: see `cudnn.Options`
    return {
        f"{PREFIX}{algorithm}{'' if math == maths[0] else ' ' + math}": {"algorithm": algorithm, "math_type": math}
        for math in maths
        for algorithm in ALGORITHMS
    }


def cudnn_contenders(problem, train):
    """(contenders, name -> why there is none): cuDNN's algorithms on a problem whose layers have one size.

    Args:
        train: forward in training, backward data and backward weights; else forward in inference.
    """
    from numbarnn.bench.peers import cudnn

    if (reason := cudnn.why_not()) is not None:
        return [], {PREFIX.strip(): reason}
    found = {name: first_that_runs(problem, train, name, chosen) for name, chosen in variants(problem.case).items()}
    contenders = [one for one in found.values() if isinstance(one, Contender)]
    return contenders, {name: words for name, words in found.items() if isinstance(words, str)}


def first_that_runs(problem, train, name, chosen):
    """A contender with the first layout that cuDNN takes; else what it said to that."""
    from numbarnn.bench.peers.cudnn import CudnnError

    words = None
    for layout in LAYOUTS:
        try:
            return cudnn_contender(problem, train, name, chosen | {"layout": layout})
        except RuntimeError as refusal:  # CudnnError among them, and what the driver says when memory runs out
            words = words or str(refusal)
            if not (isinstance(refusal, CudnnError) and refusal.refused):
                break
    return words


def cudnn_contender(problem, train, name, chosen):
    """One algorithm, with its weights packed and everything else prepared.

    Raises:
        RuntimeError: cuDNN refuses, or fails.
    """
    network = CudnnLayers(problem, range(problem.case.L), **chosen)
    prepared = network.prepare(train)

    def results(_):
        return network.named_results(prepared.results())

    why_no_graph, layout = prepared.why_no_graph, chosen["layout"]
    how = "one CUDA graph" if why_no_graph is None else f"call by call, as it cannot be a CUDA graph: {why_no_graph}"
    return Contender(name, prepared.run, results, network.rnn.synchronize, note=f"{layout}, {how}")
