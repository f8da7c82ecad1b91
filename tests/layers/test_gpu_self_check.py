"""The proof of a persistent kernel before its first use on a device: what passes is remembered, what does not is not
used by "auto", and an error where "persistent" was asked for by name."""

import warnings

import numpy as np
import pytest
from numba import cuda

import numbarnn
from mutants import altered
from numbarnn.common import code_cache
from numbarnn.compile.specialise import jit
from numbarnn.cuda.backend import backend
from numbarnn.cuda.launch import BoundKernel
from numbarnn.kernels.persistent import exchange
from numbarnn.layers import self_check
from numbarnn.schedules import auto

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def first_use(monkeypatch, tmp_path):
    """As on a device that no process has used yet; kernels are kept where other tests keep theirs."""
    monkeypatch.setenv("NUMBARNN_SELF_CHECK", "1")
    monkeypatch.setattr(self_check, "_known", {})
    monkeypatch.setattr(auto, "_doubts", {})
    auto._pick.cache_clear()
    proofs, read, write = {}, code_cache.read, code_cache.write

    def read_proof(key, suffix=".cubin"):
        return proofs.get(key) if suffix == ".proved" else read(key, suffix)

    def write_proof(key, about, code, suffix=".cubin"):
        proofs.update({key: (about, code)}) if suffix == ".proved" else write(key, about, code, suffix)

    monkeypatch.setattr(code_cache, "read", read_proof)
    monkeypatch.setattr(code_cache, "write", write_proof)
    yield proofs
    auto._pick.cache_clear()


def layer_and_x(schedule="auto", **options):
    cupy = pytest.importorskip("cupy")
    layer = numbarnn.RNN(8, 16, device="cuda", dtype="float16", schedule=schedule, seed=0, **options)
    return layer, cupy.asarray(np.random.default_rng(0).standard_normal((4, 3, 8)).astype(np.float16))


@pytest.fixture
def wrong_kernels():
    """Kernels that publish a little more than they should."""

    def wrong(make_publish):
        def make(dtype, aligned):
            publish = make_publish(dtype, aligned)

            def publish_more(array, index, stored, valid):
                publish(array, index, np.uint16(stored + np.uint16(512) * (cuda.threadIdx.x % 2)), valid)

            return jit(publish_more, backend())

        return make

    with altered({(exchange, "make_publish"): wrong(exchange.make_publish)}):
        yield


def counted(monkeypatch):
    """A list that gets an entry whenever kernels are proved."""
    asked, why_not = [], self_check._why_not
    monkeypatch.setattr(self_check, "_why_not", lambda *given: asked.append(given) or why_not(*given))
    return asked


def test_a_right_kernel_is_proved_once(first_use, monkeypatch):
    asked = counted(monkeypatch)
    layer, x = layer_and_x("persistent")
    for _ in range(2):
        layer(x)
    layer_and_x("persistent")[0](x)
    assert len(asked) == 1 and len(first_use) == 1
    ((about, _),) = first_use.values()
    assert "compute capability 9.0" in about["device"]
    monkeypatch.setattr(self_check, "_known", {})  # another process
    layer_and_x("persistent")[0](x)
    assert len(asked) == 1
    layer.forward(x)  # in training there are other kernels
    assert len(asked) == 2


def test_auto_does_without_a_wrong_kernel(wrong_kernels, monkeypatch):
    monkeypatch.setattr(auto.estimate, "pass_us", lambda problem, name, backward: float(name != "persistent"))
    layer, x = layer_and_x()
    with pytest.warns(UserWarning, match=r"persistent kernel of RNN.* on .* disagrees with 'stepwise': y differs by"):
        y, _ = layer(x)
    wanted, _ = layer_and_x("stepwise")[0](x)
    assert (y.get() == wanted.get()).all()
    assert "disagrees with 'stepwise'" in layer.explain(x.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(x)  # said once


def test_a_wrong_kernel_that_was_asked_for_is_an_error(wrong_kernels):
    layer, x = layer_and_x("persistent")
    with pytest.raises(RuntimeError, match=r"disagrees with 'stepwise'.*schedule='auto'; NUMBARNN_SELF_CHECK=0"):
        layer(x)


def test_it_can_be_turned_off(wrong_kernels, monkeypatch):
    monkeypatch.setenv("NUMBARNN_SELF_CHECK", "0")
    asked = counted(monkeypatch)
    layer, x = layer_and_x("persistent")
    layer(x)
    assert not asked


def test_blocks_that_do_not_fit_together(monkeypatch):
    """As on a share of a GPU, which tells planners of the whole."""
    monkeypatch.setattr(auto.estimate, "pass_us", lambda problem, name, backward: float(name != "persistent"))
    monkeypatch.setattr(BoundKernel, "resident_blocks", lambda bound: 1)
    layer, x = layer_and_x("persistent")
    with pytest.raises(RuntimeError, match=r"needs \d+ blocks .* but the device has room for 1 "):
        layer(x)
    layer, x = layer_and_x()
    with pytest.warns(UserWarning, match="room for 1 "):
        layer(x)


@pytest.mark.parametrize("given", ["lengths", "resets"])
def test_masked_kernels_are_proved_too(given, monkeypatch):
    asked = counted(monkeypatch)
    layer, x = layer_and_x("persistent")
    layer.forward(x, **{"lengths": [4, 2, 0]} if given == "lengths" else {"resets": np.eye(4, 3, dtype=bool)})
    assert len(asked) == 1 and not any(self_check._known.values())


@pytest.mark.parametrize("bidirectional", [False, True])
def test_segments_of_a_call_with_checkpoints_are_proved(bidirectional, monkeypatch):
    asked = counted(monkeypatch)
    layer, x = layer_and_x("persistent", checkpoint_every=3, bidirectional=bidirectional)
    y, _, tape = layer.forward(x)  # 4 steps: segments of 3 and of 1
    layer.backward(tape, y)
    assert 1 <= len(asked) <= 2 and not any(self_check._known.values())


def test_a_wrong_kernel_of_a_segment_is_an_error(wrong_kernels):
    layer, x = layer_and_x("persistent", checkpoint_every=2)
    with pytest.raises(RuntimeError, match="disagrees with 'stepwise'"):
        layer.forward(x)
