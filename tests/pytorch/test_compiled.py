"""The operators in torch.compile, torch.export and opcheck. The back end is "aot_eager": no C++ compiler is needed."""

import json
import os
import shutil

import pytest
import torch
import torch._dynamo.testing as dynamo_testing
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func

import numbarnn as nr
import numbarnn.torch as nrt
from child import in_child
from numbarnn.torch.networks import OPERATORS, Network
from running import nan_filled
from torch_networks import Setup, assert_near, leaf, run

OPTIONS = {
    "plain": {},
    "both_ways": {"bidirectional": True},
    "projection": {"proj_size": 3},
    "dropout": {"dropout": 0.5},
}
CALLS = {
    "time_first": {},
    "odd": {"lengths": [6, 0, 3, 5], "resets": True, "padding_value": 0.5},
    "states": {"lengths": [6, 0, 3, 5], "output_states": True},
}


def arguments(options, call, dtype=torch.float32, keep=True):
    """(network, arguments of rnn_forward) that need gradients."""
    torch.manual_seed(0)
    call = dict(call)
    network = Network("lstm", 5, 8, 2, **options)
    from numbarnn.torch.core import joined_state_shapes

    x = torch.randn(6, 4, 5, dtype=dtype)
    states = [torch.randn(shape, dtype=dtype) for shape in joined_state_shapes(network, 4)]
    weights = [torch.rand(part.shape, dtype=dtype) - 0.5 for part in network.parts]
    lengths = torch.tensor(call["lengths"]) if "lengths" in call else None
    resets = torch.rand(6, 4) < 0.3 if "resets" in call else None
    seed = torch.tensor([5]) if network.draws else None
    x, *states = (tensor.requires_grad_() for tensor in (x, *states))
    weights = [weight.requires_grad_() for weight in weights]
    rest = (
        network.key,
        call.get("padding_value", 0.0),
        call.get("output_states", False),
        keep,
    )
    return network, (x, *states, weights, lengths, resets, seed, *rest)


@pytest.fixture
def filled_memory():
    """What no step writes (of skipped steps, say) is the same in each call: opcheck compares all of the reserve."""
    with nan_filled(nr.engines.get("cpu")):
        yield


full = pytest.mark.full


def options_and_calls():
    """One layer with every call, each of the other options with another one; with all of them if `full`."""
    for number, options in enumerate(OPTIONS):
        for turn, call in enumerate(CALLS):
            usual = options == "plain" or (number + turn) % len(CALLS) == 0
            yield pytest.param(options, call, marks=[] if usual else full, id=f"{options}-{call}")


@pytest.mark.usefixtures("filled_memory")
@pytest.mark.parametrize("options, call", list(options_and_calls()))
def test_forward_is_as_operators_must_be(options, call):
    _, given = arguments(OPTIONS[options], CALLS[call])
    torch.library.opcheck(torch.ops.numbarnn.rnn_forward, given)
    if options == "plain":
        torch.library.opcheck(
            torch.ops.numbarnn.rnn_forward, (*given[:-1], False), test_utils=("test_schema", "test_faketensor")
        )


def calls_and_needs():
    """The gradients of x and of the weights, or of one: with one call all three, with the others one; all if `full`."""
    for turn, call in enumerate(CALLS):
        for number, need in enumerate([(True, True), (False, True), (True, False)]):
            usual = call == "states" or (number + turn) % 3 == 0
            yield pytest.param(call, need, marks=[] if usual else full, id=f"{call}-{need}")


@pytest.mark.usefixtures("filled_memory")
@pytest.mark.parametrize("call, need", list(calls_and_needs()))
def test_backward_is_as_operators_must_be(call, need):
    _, given = arguments(OPTIONS["both_ways"], CALLS[call])
    x, hx, _, weights, lengths, resets, seed, key, _, every_state, _ = given
    with torch.no_grad():
        y, hy, _, states, reserve = torch.ops.numbarnn.rnn_forward(*given)
    about = key, 6, 4, [lengths is not None, resets is not None, False, every_state, hx is None]
    weights, d_states = [weight.detach() for weight in weights], states if every_state else None
    need = need[0], [need[1]] * len(weights)
    torch.library.opcheck(
        torch.ops.numbarnn.rnn_backward, (y, hy, None, d_states, x.detach(), weights, reserve, seed, *about, *need)
    )


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("options", OPTIONS)
def test_gradients_are_those_of_differences(options, call):
    network, given = arguments(OPTIONS[options], CALLS[call], torch.float64)
    x, hx, cx, weights, lengths, resets, _, _, fill, every_state, _ = given

    def function(x, hx, cx, *weights):
        torch.manual_seed(1)
        y, hy, cy, *every = run(
            network, x, hx, cx, weights, lengths=lengths, resets=resets, padding_value=fill, training=True,
            output_states=every_state,
        )  # fmt: skip
        return y, torch.cat([hy, cy], dim=2), *(state for part in every for state in part)

    assert torch.autograd.gradcheck(function, (x, hx, cx, *weights), fast_mode=True)


# ------------------------------------------------------------------------------------------------------------ compiled
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_compiled_whole_with_sizes_that_vary(dropout):
    s = Setup(dropout=dropout)
    counted = dynamo_testing.CompileCounterWithBackend("aot_eager")
    call = torch.compile(s.loss, backend=counted, fullgraph=True, dynamic=True)
    for steps, batch in ((6, 4), (9, 3), (30, 7), (4, 2)):
        s.x, s.dy = torch.randn(steps, batch, 5), torch.randn(steps, batch, 8)
        found = []
        for function in (s.loss, call):
            torch.manual_seed(2)
            x = leaf(s.x)
            found.append(torch.autograd.grad(function(x, s.weights, training=True), [x, *s.weights]))
        assert_near(*found)
    assert counted.frame_count <= 2


class Model(torch.nn.Module):
    """A network between two linear layers."""

    def __init__(self, cell="lstm"):
        super().__init__()
        s = Setup()
        self.network, self.weights = Network(cell, 5, 8, 2), torch.nn.ParameterList(s.weights)
        self.before, self.after = torch.nn.Linear(5, 5), torch.nn.Linear(8, 3)

    def forward(self, x, lengths):
        return self.after(run(self.network, self.before(x), None, None, list(self.weights), lengths=lengths)[0])


def test_exported_with_sizes_that_vary_and_loaded_elsewhere(tmp_path):
    model = Model().eval()
    x, lengths = torch.randn(6, 4, 5), torch.tensor([6, 1, 0, 3])
    free = {"x": {0: torch.export.Dim("T", min=2), 1: torch.export.Dim("B", min=2)}}
    free["lengths"] = {0: free["x"][1]}
    program = torch.export.export(model, (x, lengths), dynamic_shapes=free)
    assert_near(program.module()(x, lengths), model(x, lengths))
    others = torch.randn(9, 3, 5), torch.tensor([9, 1, 4])
    assert_near(program.module()(*others), model(*others))
    torch.export.save(program, tmp_path / "model.pt2")
    torch.save((*others, model(*others).detach()), tmp_path / "given.pt")
    in_child(f"""
        import torch, numbarnn.torch.calls
        x, lengths, y = torch.load({str(tmp_path / "given.pt")!r})
        program = torch.export.load({str(tmp_path / "model.pt2")!r})
        torch.testing.assert_close(program.module()(x, lengths), y)
    """)


def test_meta_and_fake_tensors_have_the_right_shapes():
    s = Setup(bidirectional=True)
    real = run(s.network, s.x, None, None, s.weights)
    weights = [weight.detach().to("meta") for weight in s.weights]
    found = run(s.network, s.x.to("meta"), None, None, weights)
    assert [one.shape for one in found] == [one.shape for one in real] and found[0].device.type == "meta"
    with torch._subclasses.FakeTensorMode() as mode:
        found = run(s.network, mode.from_tensor(s.x), None, None, [mode.from_tensor(w) for w in s.weights])
        assert [one.shape for one in found] == [one.shape for one in real]


# ------------------------------------------------------------------------------------------------------ other features
def test_dtypes_that_there_are_not_are_refused_with_the_cure():
    s = Setup()
    with pytest.raises(TypeError, match=r"\.float\(\)"):
        run(s.network, s.x.to(torch.int64), None, None, [weight.detach().to(torch.int64) for weight in s.weights])


def test_what_does_not_go_together_is_refused():
    s = Setup()
    with pytest.raises(ValueError, match=r"one dtype, but are torch\.float64 and torch\.float32"):
        run(s.network, s.x.double(), None, None, s.weights)
    with pytest.raises(ValueError, match=r"x must have shape \(T, B, I\).*I = 5, but has \(6, 4, 4\)"):
        run(s.network, s.x[..., :4], None, None, s.weights)
    with pytest.raises(ValueError, match=r"hx must have shape \(2, 4, 8\), but has \(1, 4, 8\)"):
        run(s.network, s.x, torch.zeros(1, 4, 8), None, s.weights)
    with pytest.raises(ValueError, match=r"weights must be weight_ih_l0 \(32, 5\)"):
        run(s.network, s.x, None, None, s.weights[:-1])
    with pytest.raises(ValueError, match="lengths must be 0 to 6"):
        run(s.network, s.x, None, None, s.weights, lengths=[7, 1, 1, 1])


def test_networks_are_values():
    import copy
    import pickle

    network = Network("lstm", 5, [8, 6], dropout=0.1, cell_clip=(-1, 2))
    for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network)), Network.of_key(network.key)):
        assert other.key == network.key and other is not network and other.parts == network.parts
    with pytest.raises(ValueError, match=r"'nobodys' is not known in this process: define it"):
        Network.of_key(network.key.replace('"lstm"', '"nobodys"'))

    @nr.cell
    def lstm(x, h, p):
        return nr.tanh(p.W.h @ x + p.R.h @ h)

    own = Network(lstm, 5, 8)
    assert '"lstm#2"' in own.key and Network.of_key(own.key).stack.cell is lstm


def test_keys_know_what_a_cell_computes():
    """Or torch.compile takes from its cache on disk what it made of a cell before that was edited, whose reserve had
    another size; and a program that was exported would compute by other equations in silence."""

    def edited(equations):
        network = Network(nr.cell(equations, name="edited"), 5, 8)
        return json.loads(network.key) | {"cell": "edited"}

    first = edited(lambda x, h, p: nr.tanh(p.W.h @ x + p.R.h @ h))
    second = edited(lambda x, h, p: nr.sin(p.W.h @ x + p.R.h @ h))
    third = edited(lambda x, h, p: nr.tanh(p.W.h @ x + p.R.h @ h) * nr.cos(h) * nr.exp(h))
    assert len({own["source"] for own in (first, second, third)}) == 3 and first["reserve"] != third["reserve"]
    assert Network.of_key(json.dumps(first)).stack.cell.name == "edited"
    for changed in (second, third):
        with pytest.raises(ValueError, match="'edited' is not that of the exported program"):
            Network.of_key(json.dumps(changed))


def test_whoever_changes_an_operators_arguments_changes_the_networks_keys():
    """Or torch.compile takes a graph's backward from its cache on disk, as an earlier version called the operator."""
    operators = torch.ops.numbarnn.rnn_forward, torch.ops.numbarnn.rnn_backward
    arguments = [[one.name for one in operator.default._schema.arguments] for operator in operators]
    given = "lengths resets seed network padding_value every_state keep"
    of_call = "steps batch flags need_x need_weights"
    assert (OPERATORS, *map(" ".join, arguments)) == (
        5, f"x hx cx weights {given}", f"dy dhy dcy d_states x weights reserve seed network {of_call}",
    )  # fmt: skip
    assert f'"operators": {OPERATORS}' in Network("gru", 5, 8).key


# -------------------------------------------------------------------------------------------------------------- modules
class Around(nn.Module):
    """A recurrent module between two operations that a compiler would fuse."""

    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn

    def forward(self, x, *inputs, **options):
        results = self.rnn(2 * x, *inputs, **options)
        y = results[0] if isinstance(results, tuple) else results
        return y.sin()


X, STATE = (6, 4, 3), torch.zeros(2, 6, 5)
CASES = {
    "dropout": (lambda: nrt.LSTM(3, 5, 2, dropout=0.5), X, (), {}),
    "state": (lambda: nrt.GRU(3, 5, 2, batch_first=True), X, (STATE,), {}),
    "lengths": (lambda: nrt.RNN(3, 5), X, (), {"lengths": torch.tensor([1, 6, 0, 3])}),
    "unbatched": (lambda: nrt.LSTM(3, [4, 5]), X[1:], (), {}),
    "own": (lambda: nrt.Recurrent(nr.cells.library.slstm, 3, 5), X, (), {}),
    "cell": (lambda: nrt.LSTMCell(3, 5), X[1:], (), {}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_compiled_whole(case):
    make, shape, inputs, options = case
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Around(make()), torch.randn(shape)
    found = []
    for call in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        torch.manual_seed(1)
        y = call(x, *inputs, **options)
        found.append((y, *torch.autograd.grad(y.square().sum(), list(model.parameters()))))
    torch.testing.assert_close(*found)


def nodes_of(model, x):
    """How many nodes the graphs of a training call have, forward and backward."""
    counts = []

    def count(graph, inputs):
        counts.append(len(graph.graph.nodes))
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=count, bw_compiler=count)
    torch.compile(model, fullgraph=True, backend=backend)(x).sum().backward()
    return counts


def test_graphs_do_not_grow_with_steps():
    """What takes time to compile: of six layers less than three nodes per parameter, for 10 steps and for 1,000."""
    model = Around(nrt.LSTM(3, 4, 6))
    short, long = nodes_of(model, torch.randn(10, 2, 3)), nodes_of(model, torch.randn(1000, 2, 3))
    assert short == long and len(short) == 2
    assert max(short) < 3 * len(list(model.parameters()))


def test_compiled_by_inductor():
    """With PyTorch's default back end, which writes C++ around the operators."""
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        pytest.skip("inductor needs a C++ compiler: there is no g++, and CXX names none")
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(3, 3), Around(nrt.LSTM(3, 5, 2)), nn.Linear(5, 2))
    x, found = torch.randn(6, 4, 3), []
    for call in (model, torch.compile(model, fullgraph=True)):
        y = call(x)
        found.append((y, *torch.autograd.grad(y.square().sum(), list(model.parameters()))))
    torch.testing.assert_close(*found)


RANDOM = nr.cell(nr.cells.library.lstm, zoneout_h=0.5, name="lstm_of_random_steps")


@pytest.mark.parametrize("make", [lambda: nrt.LSTM(3, 5, 2, dropout=0.5), lambda: nrt.Recurrent(RANDOM, 3, 5)])
def test_vmap_draws_as_it_is_told(make):
    """By "error", the default, not at all; by "same" the same numbers for all, by "different" others for each."""
    module = make()
    x = torch.randn(1, 4, 2, 3).expand(3, 4, 2, 3)

    def of(x):
        return module(x)[0]

    with pytest.raises(RuntimeError, match="randomness"):
        torch.vmap(of)(x)
    for keep in (True, False):
        with torch.set_grad_enabled(keep):
            same = torch.vmap(of, randomness="same")(x)
            different = torch.vmap(of, randomness="different")(x)
        assert torch.equal(same[0], same[1]) and torch.equal(same[1], same[2])
        assert not torch.allclose(different[0], different[1]) and not torch.allclose(different[1], different[2])
        assert not torch.allclose(same[:, :, 0], same[:, :, 1])
    module.eval()
    torch.testing.assert_close(torch.vmap(of)(x)[2], of(x[0]))


class Packing(nn.Module):
    """Packs and unpacks around a module."""

    def __init__(self):
        super().__init__()
        self.linear, self.rnn = nn.Linear(3, 3), nrt.LSTM(3, 5)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(self.linear(x), lengths, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0])[0]


@pytest.mark.filterwarnings("error:Dynamo detected a call to a `functools.lru_cache`")
def test_a_packed_input_ends_the_graph():
    """As with torch.nn's modules: the sizes of what follows stand in tensors."""
    torch._dynamo.reset()
    model, x, lengths = Packing(), torch.randn(6, 3, 3), torch.tensor([4, 6, 1])
    found = []
    for call in (model, torch.compile(model, backend="aot_eager")):
        y = call(x, lengths)
        found.append((y, *torch.autograd.grad(y.square().sum(), list(model.parameters()))))
    torch.testing.assert_close(*found)
