"""Weights in and out of layers of halves: every bit, by every road."""

import numpy as np
import pytest

import numbarnn
from numbarnn import convert


def layer(dtype, **options):
    pytest.importorskip("ml_dtypes")
    return numbarnn.GRU(4, 5, 2, bidirectional=True, dtype=dtype, device="cpu", seed=5, **options)


def roads(path):
    """Name -> function that carries a layer there and back."""

    def onnx(original):
        pytest.importorskip("onnx")
        return convert.from_onnx(convert.to_onnx(original), device="cpu")

    def safetensors(original):
        pytest.importorskip("safetensors")
        convert.save_safetensors(original, path)
        return convert.load_safetensors(path, device="cpu")

    return {
        "torch": lambda original: convert.from_torch(convert.to_torch(original), device="cpu"),
        "cells": lambda original: convert.from_torch_cells(convert.to_torch_cells(original), device="cpu"),
        "keras": lambda original: convert.from_keras(convert.to_keras(original), device="cpu", batch_first=False),
        "onnx": onnx,
        "safetensors": safetensors,
    }


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
@pytest.mark.parametrize("road", roads(None))
def test_halves_there_and_back(road, dtype, tmp_path):
    assert_same(roads(tmp_path / "layer.safetensors")[road](layer(dtype)), layer(dtype))


@pytest.mark.parametrize("road, bias", (("keras", "input"), ("onnx", True), ("safetensors", "recurrent")))
def test_halves_of_a_gru_that_resets_before(road, bias, tmp_path):
    """By the roads that have it, with the biases that they do not change."""
    original = layer("bfloat16", reset_after=False, bias=bias)
    assert_same(roads(tmp_path / "layer.safetensors")[road](original), original)


def assert_same(found, original):
    assert repr(found) == repr(original)
    for name, array in original.state_dict().items():
        assert found.state_dict()[name].tobytes() == array.tobytes(), name


def test_a_layer_of_pytorch_in_bfloat16(tmp_path):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.LSTM(4, 5, dtype=torch.bfloat16)
    x = np.random.default_rng(0).standard_normal((3, 2, 4)).astype(np.float32)
    y, _ = convert.from_torch(model, device="cpu")(x.astype(layer("bfloat16").weights.dtype))
    with torch.no_grad():
        expected = model.float()(torch.from_numpy(x).bfloat16().float())[0].numpy()
    assert np.abs(y.astype(np.float32) - expected).max() <= 4 * 2.0**-8  # x, weights and y are rounded, |y| < 1
