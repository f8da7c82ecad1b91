"""Programs that `torch.jit.trace` and `torch.fx` write down, and what says that it cannot be written down."""

import io
import warnings

import pytest
import torch
from torch import nn

import numbarnn.torch as nrt
from numbarnn.torch import calls

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")


class Model(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.rnn, self.head = module, nn.Linear(5, 2)

    def forward(self, x):
        y, _ = self.rnn(x)
        return self.head(y)


def saved_and_loaded(program):
    file = io.BytesIO()
    torch.jit.save(program, file)
    file.seek(0)
    return torch.jit.load(file)


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("options", [{}, {"batch_first": True}], ids=["time_first", "batch_first"])
def test_a_traced_program_computes_what_it_is_given(options, gradients):
    """With other sizes too, saved and loaded; not what the call that was traced gave."""
    model, x, y = Model(nrt.LSTM(3, 5, 2, **options)), torch.randn(4, 2, 3), torch.randn(6, 3, 3)
    model(x)  # the next one would repeat it
    with torch.set_grad_enabled(gradients), warnings.catch_warnings():
        warnings.filterwarnings("error", category=torch.jit.TracerWarning)
        calls._ignore_warnings_of_traces()  # as its import does, which pytest forgets
        program = torch.jit.trace(model, (x,))
    for one in (program, saved_and_loaded(program)):
        torch.testing.assert_close(one(y), model(y))
        found = torch.autograd.grad(one(y).square().sum(), list(one.parameters()))
        expected = torch.autograd.grad(model(y).square().sum(), list(model.parameters()))
        torch.testing.assert_close(found, expected)


def test_traced_cells_and_dropout():
    cell, state = nrt.LSTMCell(3, 5), (torch.randn(2, 5), torch.randn(2, 5))
    program = torch.jit.trace(cell, (torch.randn(2, 3), state))
    x, state = torch.randn(4, 3), (torch.randn(4, 5), torch.randn(4, 5))
    torch.testing.assert_close(program(x, state), cell(x, state))
    module, x, found = nrt.GRU(3, 5, 2, dropout=0.5), torch.randn(4, 2, 3), []
    program = torch.jit.trace(module, (torch.randn(4, 2, 3),), check_trace=False)
    for one in (program, module):
        torch.manual_seed(3)
        found.append(one(x))
    torch.testing.assert_close(*found)
    assert not torch.equal(program(x)[0], program(x)[0])


class Both(nn.Module):
    """A cell and a layer with what only ours have."""

    def __init__(self):
        super().__init__()
        self.cell, self.rnn = nrt.GRUCell(3, 4), nrt.LSTM(4, 5)

    def forward(self, x, lengths):
        h = self.cell(x[1], self.cell(x[0]))
        y, (_, c) = self.rnn(h[None], lengths=lengths, padding_value=2.0)
        return y + c


def test_a_graph_of_fx_has_a_node_for_each_module():
    model, x, lengths = Both(), torch.randn(2, 4, 3), torch.tensor([1, 0, 1, 1])
    graph = torch.fx.symbolic_trace(model)
    assert [node.target for node in graph.graph.nodes if node.op == "call_module"] == ["cell", "cell", "rnn"]
    torch.testing.assert_close(graph(x, lengths), model(x, lengths))


def test_what_cannot_be_written_down_says_what_to_do():
    model = Model(nrt.LSTM(3, 5))
    for scripted in (model, model.rnn, nrt.GRUCell(3, 5)):
        with pytest.raises(NotImplementedError, match=r"torch.jit.trace or torch.export.*restore\(model\)"):
            torch.jit.script(scripted)
    pytest.importorskip("onnx")
    with pytest.raises(NotImplementedError, match=r"restore\(model\), or .*schedule='loop'"):
        torch.onnx.export(model, (torch.randn(4, 2, 3),), io.BytesIO(), dynamo=False)
    torch.onnx.export(nrt.restore(model), (torch.randn(4, 2, 3),), io.BytesIO(), dynamo=False)
