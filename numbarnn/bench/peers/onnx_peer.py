"""onnxruntime on instances of `cases`: the model that `numbarnn.convert` writes, one node per layer."""

from numbarnn.bench.peers.contender import Contender
from numbarnn.weights import onnx_write
from numbarnn.weights.network import infer


def onnxruntime_contender(instance, threads):
    """onnxruntime's CPU provider: one direction, states given, float32, forward only."""
    import onnxruntime

    model = onnx_write.write(infer(instance.parameters, instance.case.cell), state=True, apart=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    given = {"h": instance.h0, "c": instance.c0} if instance.c0 else {"h": instance.h0}
    feed = {f"{name}x_l{k}": state for name, states in given.items() for k, state in enumerate(states)}
    feed["x"] = instance.x
    names = [output.name for output in session.get_outputs()]

    def results(returned):
        found = dict(zip(names, returned, strict=True))
        return {"y": found["y"]} | {f"{s}y": [found[f"{s}y_l{k}"] for k in range(instance.case.L)] for s in given}

    return Contender("onnxruntime", lambda: session.run(None, feed), results)
