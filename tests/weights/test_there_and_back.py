"""Layers out and in again, by every road: every bit comes back."""

from itertools import product

import numpy as np
import pytest

import weights_helpers
from numbarnn import convert
from weights_helpers import SIZES, assert_same_layer

ON_CPU = {"device": "cpu"}


def by_onnx(layer, path):
    pytest.importorskip("onnx")
    return convert.from_onnx(convert.to_onnx(layer, state=True, lengths=True), device="cpu")


def by_safetensors(layer, path):
    pytest.importorskip("safetensors")
    convert.save_safetensors(layer, path)
    return convert.load_safetensors(path, device="cpu")


ROADS = {
    "state dict": lambda layer, path: convert.from_torch(layer.state_dict(), layer.cell, **ON_CPU),
    "torch": lambda layer, path: convert.from_torch(convert.to_torch(layer), layer.cell, **ON_CPU),
    "torch cells": lambda layer, path: convert.from_torch_cells(
        convert.to_torch_cells(layer), layer.cell, device="cpu"
    ),
    "keras": lambda layer, path: convert.from_keras(
        convert.to_keras(layer), layer.cell, device="cpu", batch_first=False
    ),
    "onnx": by_onnx,
    "safetensors": by_safetensors,
}
# What a road does not carry, or changes.
WITHOUT_RESET_BEFORE = ("torch", "torch cells")


@pytest.mark.parametrize("dtype", ("float16", "bfloat16", "float32", "float64"))
@pytest.mark.parametrize("cell, hidden, D", SIZES)
@pytest.mark.parametrize("road", ROADS)
def test_every_bit_comes_back(road, cell, hidden, D, dtype, tmp_path):
    pytest.importorskip("ml_dtypes")
    if cell == "gru_reset_before" and road in WITHOUT_RESET_BEFORE:
        pytest.skip("torch.nn has no such GRU")
    bias = True if road != "keras" or cell == "gru" else "input"  # of two, Keras has the sum
    layer = weights_helpers.make(cell, hidden, D, dtype, bias=bias)
    assert_same_layer(ROADS[road](layer, tmp_path / "layer"), layer)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ("float16", "bfloat16", "float32"))
def test_every_bit_comes_back_from_a_gpu(dtype):
    layer = weights_helpers.make("lstm", (5, 5), 2, dtype)
    on_gpu = convert.from_torch(layer.state_dict(), device="cuda")
    assert (on_gpu.device, on_gpu.dtype) == ("cuda", dtype)
    assert_same_layer(convert.from_torch(convert.to_torch(on_gpu), device="cpu"), layer)


@pytest.mark.parametrize("bias, input_mode", [*product((True, False, "input", "recurrent"), ("linear", "skip"))])
@pytest.mark.parametrize("cell, hidden, D", [("lstm", (5, 5, 5), 2), ("gru", (5, 3, 2), 2), ("rnn_tanh", (5,), 1)])
def test_a_state_dict_tells_everything(cell, hidden, D, bias, input_mode):
    """But for the cell of an RNN; names in any order."""
    layer = weights_helpers.make(cell, hidden, D, I=5, bias=bias, input_mode=input_mode)
    told = None if cell in ("lstm", "gru") else cell
    shuffled = dict(sorted(layer.state_dict().items(), reverse=True))
    assert_same_layer(convert.from_torch(shuffled, told, device="cpu"), layer)


def test_a_layer_of_pytorch_in_bfloat16():
    torch, dtype = pytest.importorskip("torch"), pytest.importorskip("ml_dtypes").bfloat16
    torch.manual_seed(0)
    model = torch.nn.LSTM(4, 5, dtype=torch.bfloat16)
    x = np.random.default_rng(0).standard_normal((3, 2, 4)).astype(np.float32)
    y, _ = convert.from_torch(model, device="cpu")(x.astype(dtype))
    with torch.no_grad():
        expected = model.float()(torch.from_numpy(x).bfloat16().float())[0].numpy()
    assert np.abs(y.astype(np.float32) - expected).max() <= 4 * 2.0**-8  # x, weights and y are rounded, |y| < 1
