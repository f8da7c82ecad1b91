"""The library's LSTMs with peepholes, other functions and coupled gates against onnxruntime, which has them too."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
torch = pytest.importorskip("torch")

from cases import Case  # noqa: E402
from comparing import assert_close  # noqa: E402
from equations import LIBRARY, by_loops_names, loop_of, own_parameters  # noqa: E402
from problems import Problem  # noqa: E402
from running import infer  # noqa: E402

ONNX_GATES = "iofg"  # ONNX calls g c

# name -> attributes of the node. ONNX' hard sigmoid is clip(alpha x + beta, 0, 1), its leaky ReLU alpha x below 0.
NODES = {
    "library lstm": {},
    "peephole_lstm": {},
    "coupled_lstm": {"input_forget": 1},
    "lstm_with hard_sigmoid tanh softsign": {
        "activations": ["HardSigmoid", "Tanh", "Softsign"],
        "activation_alpha": [1 / 6],
        "activation_beta": [0.5],
    },
    "lstm_with sigmoid relu elu": {"activations": ["Sigmoid", "Relu", "Elu"], "activation_alpha": [1.0]},
    "lstm_with sigmoid softplus leaky_relu": {
        "activations": ["Sigmoid", "Softplus", "LeakyRelu"],
        "activation_alpha": [0.01],
    },
}
CASES = [Case(name, T=5, directions=directions, hidden=(7,)) for name in NODES for directions in (1, 2)]


def stacked(problem, group, gates=ONNX_GATES):
    """(D, gates*H, ...): the parameters "group.gate" of layer 0 in the order of ONNX; a gate that is not there is 0."""

    def part(parameters, gate):
        found = parameters.get(f"{group}.{gate}" if group != "peep" else f"peep_{gate}")
        return np.zeros_like(parameters[f"{group}.i"]) if found is None else found

    case, found = problem.case, []
    for direction in range(case.directions):
        own = own_parameters(problem.parameters, 0, direction)
        p = by_loops_names(case.definition, loop_of(case.cell), own, case.hidden[0])
        found.append(np.concatenate([part(p, gate) for gate in gates]))
    return np.stack(found)


def run_onnxruntime(problem):
    """Name -> what onnxruntime's node computes on the CPU."""
    case = problem.case
    W, R, b = (stacked(problem, group) for group in "WRb")
    inputs = {"X": problem.x, "W": W, "R": R, "B": np.concatenate([b, np.zeros_like(b)], axis=1)}
    names = ["X", "W", "R", "B", "", "h", "c"]
    inputs |= dict(zip("hc", (problem.h, problem.c), strict=True))
    if case.cell == "peephole_lstm":
        names.append("P")
        inputs["P"] = stacked(problem, "peep", "iof")
    direction = "bidirectional" if case.directions == 2 else "forward"
    attributes = {k: v * case.directions if isinstance(v, list) else v for k, v in NODES[case.cell].items()}
    node = onnx.helper.make_node(
        "LSTM", names, ["Y", "Y_h", "Y_c"], hidden_size=case.hidden[0], direction=direction, **attributes
    )
    given, made = (
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in values]
        for values in ([(name, a.shape) for name, a in inputs.items()], [(name, None) for name in node.output])
    )
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "cell", given, made), opset_imports=[onnx.helper.make_opsetid("", 14)]
    )
    model.ir_version = 8
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    y, h, c = session.run(None, inputs)
    return {"y": np.concatenate(list(y.swapaxes(0, 1)), axis=-1), "hy": h, "cy": c}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agrees_with_onnxruntime(case):
    problem = Problem(case)
    theirs, loops = run_onnxruntime(problem), problem.expected()
    assert_close(case, theirs, {name: loops[name] for name in theirs}, "loop")


@pytest.mark.parametrize("case", [
    pytest.param(case, marks=[] if case.cell == "peephole_lstm" else [pytest.mark.full]) for case in CASES
], ids=str)  # fmt: skip
def test_layers_agree_with_onnxruntime(case):
    """Of one cell by default: loops and layers of all are compared in test_conformance.py."""
    problem = Problem(case)
    theirs = run_onnxruntime(problem)
    ours = infer(problem.layer(), problem)
    assert_close(case, ours, {name: theirs[name] for name in ours}, "layer", limit=2 * case.limit)


def test_every_loop_that_onnxruntime_has_is_compared():
    of_onnx = {name for name in LIBRARY if name.startswith("lstm_with") or name in ("peephole_lstm", "coupled_lstm")}
    of_onnx -= {"lstm_with sigmoid gelu mish", "lstm_with normal_cdf selu erf"}  # not among ONNX' activations
    assert of_onnx | {"library lstm"} == {*NODES}
