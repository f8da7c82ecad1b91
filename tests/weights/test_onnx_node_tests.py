"""The ONNX project's own tests of LSTM, GRU and RNN nodes, on the CPU engine.

Each is a node, its inputs and the outputs that the standard asks for (onnx.backend.test). Weights go through
`convert.from_onnx`, all else is passed to the layer's call.
"""

import importlib
from types import SimpleNamespace

import numpy as np
import pytest

from numbarnn import convert
from weights_helpers import assert_close

onnx = pytest.importorskip("onnx")

WEIGHTS = ("W", "R", "B", "P")


def collect():
    """Name -> test (node, inputs by name, outputs by name) of the three operators."""
    found = {}
    for operator in ("RNN", "LSTM", "GRU"):
        module = importlib.import_module(f"onnx.backend.test.case.node.{operator.lower()}")

        def record(node, inputs, outputs, name, **_):
            by_name = [dict(zip(filter(None, names), arrays, strict=True))
                       for names, arrays in ((node.input, inputs), (node.output, outputs))]  # fmt: skip
            found[name] = SimpleNamespace(node=node, inputs=by_name[0], outputs=by_name[1])

        expect, module.expect = module.expect, record
        try:
            exporter = getattr(module, operator)
            for name in sorted(vars(exporter)):
                if name.startswith("export"):
                    getattr(exporter, name)()
        finally:
            module.expect = expect
    return found


TESTS = collect()
GRU_TESTS = [name for name in TESTS if name.startswith("test_gru")]


def model_of(test):
    """A model whose weights are constants, as they are everywhere but in these tests."""
    constants = [onnx.numpy_helper.from_array(a, name) for name, a in test.inputs.items() if name in WEIGHTS]
    graph = onnx.helper.make_graph([test.node], "g", [], [], constants)
    return onnx.helper.make_model(graph)


def run(test):
    """Outputs of a layer, by the node's names and in its shapes."""
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in test.node.attribute}
    reverse, batch_first = attributes.get("direction") == b"reverse", attributes.get("layout", 0) == 1
    layer = convert.from_onnx(model_of(test), reverse_as_forward=reverse, device="cpu")
    assert layer.batch_first == batch_first
    rest = {name: array for name, array in test.inputs.items() if name not in WEIGHTS}
    x = rest.pop("X")
    lengths = rest.pop("sequence_lens", None)
    states = [rest.pop(name) for name in ("initial_h", "initial_c") if name in rest]
    assert not rest, f"inputs that nobody passes on: {list(rest)}"
    given = tuple(states) if len(states) > 1 else states[0] if states else None
    y, state = layer(np.ascontiguousarray(x[::-1]) if reverse else x, given, lengths=lengths)
    h, c = state if test.node.op_type == "LSTM" else (state, None)
    directions = 2 if layer.bidirectional else 1
    y = (y[::-1] if reverse else y).reshape(*y.shape[:2], directions, -1)
    if batch_first:
        return {"Y": y, "Y_h": h.swapaxes(0, 1)}
    return {"Y": y.swapaxes(1, 2), "Y_h": h, "Y_c": c}


def test_there_are_tests():
    assert len(TESTS) >= 18


@pytest.mark.parametrize("name", TESTS)
def test_node(name):
    test = TESTS[name]
    found = run(test)
    assert_close([found[one] for one in test.outputs], list(test.outputs.values()), "float32")


@pytest.mark.parametrize("name", GRU_TESTS)
def test_gru_with_linear_before_reset(name):
    """The same GRU tests with the attribute that cuDNN's GRU has; the ONNX project's NumPy GRU gives the outputs."""
    test = TESTS[name]
    node = onnx.NodeProto.FromString(test.node.SerializeToString())
    node.attribute.append(onnx.helper.make_attribute("linear_before_reset", 1))
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    attributes["direction"] = attributes.get("direction", b"forward").decode()
    module = importlib.import_module("onnx.backend.test.case.node.gru")
    y, h = module.GRUHelper(**test.inputs, **attributes).step()
    found = run(SimpleNamespace(node=node, inputs=test.inputs))
    assert_close([found["Y"], found["Y_h"]], [y, h], "float32")
