"""safetensors files: there and back with options, PyTorch's files, and files that are none."""

import json
import re

import numpy as np
import pytest

import weights_helpers
from numbarnn import convert
from weights_helpers import assert_same_bits, assert_same_layer

numpy_files = pytest.importorskip("safetensors.numpy")


def test_options_are_in_the_file_and_can_be_replaced(tmp_path):
    path = tmp_path / "layer.safetensors"
    layer = weights_helpers.make("gru", (5, 3), 2, bias=False, batch_first=True, dropout=0.25)
    convert.save_safetensors(layer, str(path))
    assert_same_layer(convert.load_safetensors(path, device="cpu"), layer)
    other = convert.load_safetensors(path, device="cpu", batch_first=False, dtype="float64")
    assert (other.batch_first, other.dropout, other.dtype) == (False, 0.25, "float64")
    assert convert.load_safetensors(path, "gru", device="cpu").cell == "gru"
    for cell in ("lstm", "gru_reset_before"):
        with pytest.raises(ValueError, match=f"layer.safetensors is of cell 'gru', not '{cell}' as asked for"):
            convert.load_safetensors(path, cell)


def outputs(layer, x):
    """[y, hy, cy] of an LSTM."""
    y, state = layer(x)
    return [y, *state]


def test_every_option_there_and_back(tmp_path):
    path = tmp_path / "layer.safetensors"
    layer = weights_helpers.make("lstm", (5, 5), 2, bias="recurrent", I=5, input_mode="skip", proj_size=3,
                                 cell_clip=(-0.5, 0.75), clip_propagate_nan=False)  # fmt: skip
    convert.save_safetensors(layer, path)
    found = convert.load_safetensors(path, device="cpu")
    assert_same_layer(found, layer)
    names = ("bias_mode", "input_mode", "proj_size", "cell_clip", "clip_propagate_nan")
    assert [getattr(found, name) for name in names] == ["recurrent", "skip", 3, (-0.5, 0.75), False]
    x = np.full((3, 2, 5), 9.0, np.float32)  # large enough to be clipped
    assert all(map(np.array_equal, outputs(found, x), outputs(layer, x)))
    assert not np.array_equal(found(x)[0], convert.load_safetensors(path, device="cpu", cell_clip=None)(x)[0])


def test_any_program_finds_pytorchs_state_dict(tmp_path):
    layer = weights_helpers.make("lstm", (5, 5), 2)
    convert.save_safetensors(layer, tmp_path / "layer.safetensors")
    found = numpy_files.load_file(tmp_path / "layer.safetensors")
    assert_same_bits({name: found[name] for name in layer.state_dict()}, layer.state_dict())
    assert len(found) == len(layer.parameters)


def test_a_file_that_pytorch_wrote(tmp_path):
    torch = pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.torch").save_file
    model = torch.nn.ModuleDict({"encoder": torch.nn.RNN(4, 5, 2), "head": torch.nn.Linear(5, 2)})
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    layer = convert.load_safetensors(tmp_path / "model.safetensors", "rnn_tanh", prefix="encoder.", device="cpu")
    assert_same_bits(layer.state_dict(), {k: v.numpy() for k, v in model["encoder"].state_dict().items()})
    with pytest.raises(ValueError, match=r"Prefixes with such an entry: \['encoder\.'\]"):
        convert.load_safetensors(tmp_path / "model.safetensors", "rnn_tanh")


def test_cells_in_a_file_that_pytorch_wrote(tmp_path):
    torch = pytest.importorskip("torch")
    save_file, path = pytest.importorskip("safetensors.torch").save_file, tmp_path / "model.safetensors"
    model = torch.nn.ModuleDict({"a": torch.nn.LSTMCell(4, 5), "b": torch.nn.LSTMCell(5, 5)})
    save_file(model.state_dict(), path)
    for prefix, cells in (("a.", [model["a"]]), (["a.", "b."], [model["a"], model["b"]])):
        found = convert.load_safetensors(path, prefix=prefix, device="cpu")
        assert_same_layer(found, convert.from_torch_cells(cells, device="cpu"))


def test_files_that_do_not_fit(tmp_path):
    layer = weights_helpers.make("gru")
    path = tmp_path / "layer.safetensors"
    convert.save_safetensors(layer, path)
    content = path.read_bytes()

    (tmp_path / "short.safetensors").write_bytes(content[:-8])
    (tmp_path / "text.safetensors").write_text("weights")
    (tmp_path / "empty.safetensors").write_bytes(b"")
    for name in ("short", "text", "empty"):
        with pytest.raises(ValueError, match=rf"{name}.safetensors cannot be read as a safetensors file: "):
            convert.load_safetensors(tmp_path / f"{name}.safetensors")
    for name, kind in (("absent", FileNotFoundError), (".", IsADirectoryError), ("text.safetensors/x", OSError)):
        with pytest.raises(kind, match=re.escape(f"'{tmp_path / name}'")):
            convert.load_safetensors(tmp_path / name)

    arrays = layer.state_dict()
    for text, message in (
        ("{", "are not valid JSON"),
        ("[1]", r"JSON object, not \[1\]"),
        ("[" * 10**5, "are not valid JSON"),
    ):
        metadata = {"numbarnn": text}
        numpy_files.save_file(arrays, path, metadata=metadata)
        with pytest.raises(ValueError, match=message):
            convert.load_safetensors(path)
    numpy_files.save_file(arrays, path, metadata={"numbarnn": json.dumps({"cell": "gru", "zoneout": 0.5})})
    with pytest.raises(ValueError, match=r"layer.safetensors has unknown options \['zoneout'\]; allowed are cell"):
        convert.load_safetensors(path)
    numpy_files.save_file(arrays | {"extra": np.zeros(2)}, path)
    with pytest.raises(ValueError, match="unknown extra"):
        convert.load_safetensors(path)


def test_without_the_package(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "safetensors", None)
    monkeypatch.setitem(__import__("sys").modules, "safetensors.numpy", None)
    for call in (
        lambda: convert.load_safetensors(tmp_path / "x"),
        lambda: convert.save_safetensors(weights_helpers.make("gru"), tmp_path / "x"),
    ):
        with pytest.raises(ImportError, match=r'needs the package safetensors: pip install .*\[safetensors\]"'):
            call()
