"""cuDNN's algorithms as contenders of `numbarnn bench`: called directly, with nothing of a framework around them."""

from numbarnn.bench.contender import Contender
from numbarnn.bench.cudnn_peer import Network

# Math types of cuDNN by whether float32 may be rounded: without TF32; with, where "default" is TF32 (as PyTorch asks
# for it), and the other one is cuDNN's conversion to float16.
FLOAT32_MATHS = {False: ("fma",), True: ("default", "tensor_op_allow_conversion")}
PREFIX = "cudnn "


def variants(case):
    """Contender's name -> what cuDNN is asked for, of every algorithm and math type that fits a case's dtype."""
    from numbarnn.reference.cudnn.options import ALGORITHMS

    maths = FLOAT32_MATHS[case.allow_tf32] if case.dtype == "float32" else (None,)  # None: see `cudnn.Options`
    return {
        f"{PREFIX}{algorithm}{'' if math == maths[0] else ' ' + math}": {"algorithm": algorithm, "math_type": math}
        for math in maths
        for algorithm in ALGORITHMS
    }


def cudnn_contenders(problem, train):
    """(contenders, name -> why there is none): cuDNN's algorithms on a problem whose layers have one size.

    train   forward in training, backward data and backward weights; else forward in inference
    """
    from numbarnn.reference import cudnn

    if (reason := cudnn.why_not()) is not None:
        return [], {PREFIX.strip(): reason}
    contenders, refusals = [], {}
    for name, chosen in variants(problem.case).items():
        try:
            contenders.append(cudnn_contender(problem, train, name, chosen))
        except RuntimeError as refusal:  # CudnnError among them, and what the driver says when memory runs out
            refusals[name] = str(refusal)
    return contenders, refusals


def cudnn_contender(problem, train, name, chosen):
    """One algorithm, with its weights packed and everything else prepared.

    Raises:
        RuntimeError: cuDNN refuses, or fails.
    """
    network = Network(problem, range(problem.case.L), **chosen)
    prepared = network.prepare(train)

    def results(_):
        return network.named_results(prepared.results())

    why_no_graph = prepared.why_no_graph
    note = "one CUDA graph" if why_no_graph is None else f"call by call, as it cannot be a CUDA graph: {why_no_graph}"
    return Contender(name, prepared.run, results, network.rnn.synchronize, note=note)
