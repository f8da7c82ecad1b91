"""onnxruntime on the problems of `cases`: a model of one node per layer."""

import numpy as np

from numbarnn.bench.cases.cases import GATES
from numbarnn.bench.peers.contender import Contender

# numbarnn and PyTorch order gates i f g o and r z n (h for n in ONNX); ONNX has i o f c and z r h.
ONNX_GATE_ORDER = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn_tanh": (0,), "rnn_relu": (0,)}
ONNX_OPERATOR = {"lstm": "LSTM", "gru": "GRU", "rnn_tanh": "RNN", "rnn_relu": "RNN"}
ONNX_OPSET, ONNX_IR_VERSION = 17, 9  # read by every onnxruntime since 1.16


def onnx_model(problem):
    """The problem as an ONNX model of one node per layer: one direction, states given, float32."""
    from onnx import TensorProto, helper, numpy_helper

    case, (T, B) = problem.case, problem.x.shape[:2]
    order = ONNX_GATE_ORDER[case.cell]

    def reordered(array):
        gates = array.reshape(GATES[case.cell], -1, *array.shape[1:])
        return np.ascontiguousarray(gates[list(order)].reshape(array.shape))

    def value_info(name, *shape):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    attributes = {"gru": {"linear_before_reset": 1}, "rnn_relu": {"activations": ["Relu"]}}.get(case.cell, {})
    inputs, outputs, nodes = [value_info("x", T, B, case.input_size)], [], []
    weights = [numpy_helper.from_array(np.array([1], np.int64), "axis_of_directions")]
    below = "x"
    for k, H in enumerate(case.hidden):
        W, R, b_w, b_r = (
            reordered(problem.parameters[f"{name}_l{k}"]) for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        arrays = {f"W{k}": W[None], f"R{k}": R[None], f"b{k}": np.concatenate([b_w, b_r])[None]}
        weights += [numpy_helper.from_array(array, name) for name, array in arrays.items()]
        states = "hc" if case.cell == "lstm" else "h"
        node_inputs = [below, *arrays, "", *(f"{s}0_{k}" for s in states)]
        node_outputs = [f"y_with_directions{k}", *(f"{s}y_{k}" for s in states)]
        nodes.append(helper.make_node(ONNX_OPERATOR[case.cell], node_inputs, node_outputs, hidden_size=H, **attributes))
        below = f"y{k}"
        nodes.append(helper.make_node("Squeeze", [node_outputs[0], "axis_of_directions"], [below]))
        inputs += [value_info(f"{s}0_{k}", 1, B, H) for s in states]
        outputs += [value_info(f"{s}y_{k}", 1, B, H) for s in states]
    graph = helper.make_graph(nodes, "numbarnn", inputs, [value_info(below, T, B, case.hidden[-1]), *outputs], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", ONNX_OPSET)])
    model.ir_version = ONNX_IR_VERSION
    return model


def onnxruntime_contender(problem, threads):
    """onnxruntime's CPU provider on `onnx_model`: float32, forward only."""
    import onnxruntime

    case = problem.case
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(
        onnx_model(problem).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feed = {"x": problem.x}
    for name, states in (("h", problem.h0), ("c", problem.c0)):
        feed |= {f"{name}0_{k}": state for k, state in enumerate(states or ())}
    names = [output.name for output in session.get_outputs()]

    def results(returned):
        found = dict(zip(names, returned, strict=True))
        states = {f"{s}y": [found[f"{s}y_{k}"] for k in range(case.L)] for s in ("hc" if problem.c0 else "h")}
        return {"y": returned[0]} | states

    return Contender("onnxruntime", lambda: session.run(None, feed), results)
