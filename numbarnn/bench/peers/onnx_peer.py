"""onnxruntime on instances of `cases`: the model that `numbarnn.convert` writes, one node per layer."""

from numbarnn.bench.peers.contender import Contender
from numbarnn.weights import onnx_write
from numbarnn.weights.network import infer


def onnxruntime_contender(instance, threads):
    """onnxruntime's CPU provider: one direction, states given, float32, forward only."""
    session, names = onnx_session(instance, threads)
    feed = state_feed(instance) | {"x": instance.x}
    given = "hc" if instance.c0 else "h"

    def results(returned):
        found = dict(zip(names, returned, strict=True))
        return {"y": found["y"]} | {f"{s}y": [found[f"{s}y_l{k}"] for k in range(instance.case.L)] for s in given}

    return Contender("onnxruntime", lambda: session.run(None, feed), results)


def onnx_session(instance, threads):
    """(session, names of its outputs) of an instance's model on the CPU."""
    import onnxruntime

    model = onnx_write.write(infer(instance.parameters, instance.case.cell), state=True, apart=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session, [output.name for output in session.get_outputs()]


def state_feed(instance):
    """The model's input -> initial state, for each layer: hx_l0 and, of the LSTM, cx_l0, and so on."""
    given = {"h": instance.h0, "c": instance.c0} if instance.c0 else {"h": instance.h0}
    return {f"{name}x_l{k}": state for name, states in given.items() for k, state in enumerate(states)}
