"""`numbarnn bench --device cuda` without a GPU: cuDNN and its device are made of NumPy (fake_cudnn.py), numbarnn's
layers of the reference (stub_layer.py), PyTorch runs on the CPU, and the GPU's clock says what a test wants it to."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import fake_cudnn
from numbarnn.bench import lineup, shapes, speed, timing
from numbarnn.bench.peers import cudnn, cudnn_peer, peers, torch_peer
from numbarnn.bench.peers.cudnn import descriptors as options
from stub_layer import use_stub

torch = pytest.importorskip("torch")
ALGORITHMS = [f"cudnn {name}" for name in options.ALGORITHMS]


@pytest.fixture
def machine(monkeypatch, session, short_turns):
    """What a test looks into: the fake cuDNN's session, tf32 of each call of PyTorch's, asked: (algo, mathType) of each
    network that cuDNN was asked for, the cases of numbarnn's layers; and clock: contender -> its time, else 4."""
    found = SimpleNamespace(session=session, clock={}, tf32=[], asked=[], cases=[])
    use_stub(monkeypatch)
    make_layer, make_torch = peers.make_layer, torch_peer.torch_contender
    describe = found.session.library.cudnnSetRNNDescriptor_v8

    def layer_of(case, *arguments, **keywords):
        found.cases.append(case)
        return make_layer(case, *arguments, **keywords)

    def on_the_cpu(problem, train, device="cpu"):
        contender = make_torch(problem, train, "cpu")

        def call():
            found.tf32.append((torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32))
            return contender.call()

        return replace(contender, call=call)

    def asked(rnnDesc, **given):
        found.asked.append((given["algo"], given["mathType"]))
        describe(rnnDesc=rnnDesc, **given)

    def device_time(contender, calls, call_s):
        return found.clock.get(contender.name, 4.0), contender.name not in found.clock.get("behind", ())

    monkeypatch.setattr(peers, "make_layer", layer_of)
    monkeypatch.setattr(torch_peer, "torch_contender", on_the_cpu)
    monkeypatch.setattr(found.session.library, "cudnnSetRNNDescriptor_v8", asked)
    monkeypatch.setattr(timing, "device_time", device_time)
    monkeypatch.setattr(timing, "WARM_S", 0.0)
    monkeypatch.setattr(speed, "choose_device", lambda wanted: "cuda")
    return found


@pytest.fixture
def bench(machine, command):
    """A function that runs the command and returns (its status, the record)."""
    small = "bench --device cuda --shape 3,2,4,5,2 --rounds 3 --threads 1 --cell gru".split()
    return partial(command, *small)


def test_every_algorithm_is_timed_and_the_fastest_is_the_peer(machine, bench, capsys):
    machine.clock |= {"cudnn persist_static": 2.0, "cudnn persist_dynamic": 3.0, "numbarnn auto": 1.0, "torch": 5.0}
    found = bench("--tf32", "off")
    assert [(row["what"], row["tf32"]) for row in found["results"]] == [("forward", False), ("forward+backward", False)]
    for row in found["results"]:
        assert set(row["device_seconds"]) == {"numbarnn", "torch", *ALGORITHMS}
        assert row["best_cudnn"] == "cudnn persist_static"
        assert row["device_ratio"]["cudnn persist_static"] == 0.5 and row["device_ratio"]["torch"] == 0.2
        assert {row["notes"][name] for name in ALGORITHMS} == {"seq_major_packed, one CUDA graph"}
        assert row["left_out"] == {} and row["doubts"] == []
        compared = {check["contender"] for check in row["agreement"]}
        assert compared == {"numbarnn auto", *ALGORITHMS} and all(check["ok"] for check in row["agreement"])
    said = capsys.readouterr().out
    assert "/ best cuDNN" in said and "PyTorch's choice" in said and "cuDNN small_h" in said and "0.50" in said
    assert {algorithm for algorithm, _ in machine.asked} == set(options.ALGORITHMS.values())


def test_with_and_without_tf32_are_rows_of_their_own(machine, bench):
    found = bench()
    assert [row["tf32"] for row in found["results"]] == [False, False, True, True]
    maths = options.MATH_TYPES
    networks = 2 * len(options.ALGORITHMS)  # forward and training
    assert [math for _, math in machine.asked[:networks]] == [maths["fma"]] * networks
    wanted = [maths["default"]] * 4 + [maths["tensor_op_allow_conversion"]] * 4
    assert [math for _, math in machine.asked[networks:]] == wanted * 2
    assert {"cudnn standard", "cudnn standard tensor_op_allow_conversion"} <= found["results"][2]["seconds"].keys()
    assert [case.allow_tf32 for case in machine.cases] == [False, False, True, True]
    assert set(machine.tf32) == {(False, False), (True, True)}
    assert not torch.backends.cudnn.allow_tf32


def test_an_algorithm_with_wrong_results_has_no_time(machine, bench, monkeypatch, capsys):
    network = cudnn_peer.CudnnNetwork

    class Wrong(network):
        def results(self, call):
            found = super().results(call)
            off = self.rnn.options.algorithm == "persist_static" and "dx" in found
            return found | ({"dx": found["dx"] + np.float32(0.1)} if off else {})

    monkeypatch.setattr(cudnn_peer, "CudnnNetwork", Wrong)
    machine.clock["cudnn persist_static"] = 0.1
    found = bench("--tf32", "off", code=1)
    forward, training = found["results"]
    assert forward["best_cudnn"] == "cudnn persist_static" and training["best_cudnn"] == "cudnn standard"
    assert training["ok"] and "cudnn persist_static's dx: is" in training["left_out"]["cudnn persist_static"]


def test_without_cudnn_pytorchs_choice_is_left(machine, bench, monkeypatch, capsys):
    monkeypatch.setattr(cudnn, "why_not", lambda: "libcudnn.so.9 is nowhere")
    found = bench("--tf32", "off")
    assert found["method"]["cudnn"]["version"] is None
    for row in found["results"]:
        assert set(row["seconds"]) == {"numbarnn", "torch"} and row["best_cudnn"] is None
    assert "cudnn, 2 cases such as gru 3,2,4,5,2 float32 fwd: libcudnn.so.9 is nowhere" in capsys.readouterr().out


def test_deepbenchs_passes_are_cudnns_functions_apart(machine, command, monkeypatch, capsys):
    """Skip input; each function runs alone, on the reserve space of a forward, and what it computes is right."""
    own = {"gru": shapes.shapes("3,2,5,5,1"), "lstm": shapes.shapes("2,3,4,4,1")}
    monkeypatch.setitem(speed.DEEPBENCH, "deepbench-train", own)
    ran, do = [], fake_cudnn.FakeLibrary

    def noted(name, function):
        return lambda self, **arguments: ran.append(name) or function(self, **arguments)

    for name in fake_cudnn.RUNNING:
        monkeypatch.setattr(do, name, noted(name, getattr(do, name)))
    only = {}

    def device_time(contender, calls, call_s):
        ran.clear()
        contender.call()
        only.setdefault(contender.name, []).append(tuple(ran))
        return 4.0, True

    monkeypatch.setattr(timing, "device_time", device_time)
    found = command(*"bench --device cuda --set deepbench-train --tf32 off --rounds 3 --threads 1".split())
    assert [row["what"] for row in found["results"]] == [*shapes.APART] * 2
    for row in found["results"]:
        assert row["input_mode"] == "skip" and set(row["device_seconds"]) == {"numbarnn", *ALGORITHMS}
        assert row["left_out"] == {"torch": lineup.NO_SKIP}
        compared = {check["quantity"] for check in row["agreement"] if check["contender"] == "cudnn standard"}
        parameters = {"weight_hh_l0", "bias_ih_l0", "bias_hh_l0"}
        states = {"c", "h"} if row["cell"] == "lstm" else {"h"}
        expected = {"y", *(f"{s}y" for s in states)} if "forward" in row["what"] else set()
        expected |= {"dx", *(f"d{s}x" for s in states)} if row["what"] in ("backward", "backward data") else set()
        assert compared == expected | (parameters if row["what"] in ("backward", "backward weights") else set())
    forward, data, weights = ((name,) for name in fake_cudnn.RUNNING)
    alone = [forward, forward, data, weights, data + weights]
    assert only["cudnn standard"] == [one for one in alone * 2 for _ in range(3)]
    assert "bwd weights: numbarnn goes back through the steps" in capsys.readouterr().out
