"""Run instances of `cases` in onnxruntime on the CPU, as a model that `numbarnn.convert` writes."""

from numbarnn.bench.peers.contender import Contender
from numbarnn.weights import onnx_write
from numbarnn.weights.network import infer

NAME = "onnxruntime"


def onnx_session(instance, threads):
    """Return a session's run function, the names of its outputs, and input name -> initial state."""
    import onnxruntime

    model = onnx_write.write(infer(instance.parameters, instance.case.cell), state=True, apart=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    first = {"h": instance.h0} | ({"c": instance.c0} if instance.c0 else {})
    initial = {f"{name}x_l{k}": state for name, states in first.items() for k, state in enumerate(states)}
    return session.run, [output.name for output in session.get_outputs()], initial


def onnxruntime_contender(instance, threads):
    """Return the contender for inference in float32, in one direction, with initial states."""
    run, names, initial = onnx_session(instance, threads)
    feed = initial | {"x": instance.x}

    def results(returned):
        arrays = dict(zip(names, returned, strict=True))
        states = "hc" if instance.c0 else "h"
        return {"y": arrays["y"]} | {f"{s}y": [arrays[f"{s}y_l{k}"] for k in range(instance.case.L)] for s in states}

    return Contender(NAME, lambda: run(None, feed), results)
