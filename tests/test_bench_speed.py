"""`numbarnn bench`: refuses times of wrong results, and records what it measured."""

import json

import numpy as np
import pytest
from stub_layer import use_stub

from numbarnn import cli
from numbarnn.bench import cases, peers, speed

torch = pytest.importorskip("torch")

SMALL = ["bench", "--device", "cpu", "--shape", "3,2,4,5,1", "--rounds", "2", "--threads", "1"]


@pytest.fixture(autouse=True)
def short_turns(monkeypatch):
    """Turns of a millisecond, and PyTorch's number of threads as it was."""
    monkeypatch.setattr(speed, "TURN_S", 1e-3)
    monkeypatch.setattr(speed, "GAP_S", 0.0)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def run_bench(tmp_path, *arguments):
    path = tmp_path / "bench.json"
    code = cli.main([*SMALL, "--json", str(path), *arguments])
    return code, json.loads(path.read_text())


def test_times_ratios_and_where_they_come_from(tmp_path, monkeypatch, capsys):
    use_stub(monkeypatch)
    code, record = run_bench(tmp_path, "--shape", "2,1,3,4,2", "--cell", ",".join(cases.CELLS))
    assert code == 0
    assert {"date", "device", "device_name", "environment", "method", "results"} <= record.keys()
    assert record["environment"]["versions"]["PyTorch"].startswith(torch.__version__.split("+")[0])
    assert len(record["results"]) == 4 * 2 * 2
    for row in record["results"]:
        assert row["ok"] and row["refusal"] is None
        names = {"numbarnn", "torch"}
        if row["what"] == speed.FORWARD and peers.installed("onnx", "onnxruntime"):
            names |= {"onnxruntime"}
        assert set(row["seconds"]) == set(row["median_s"]) == names
        assert set(row["ratio"]) == names - {"numbarnn"}
        assert all(len(times) == 2 and min(times) > 0 for times in row["seconds"].values())
        assert all(check["ok"] for check in row["agreement"])
    assert "agree with PyTorch" in capsys.readouterr().out


@pytest.mark.parametrize("quantity", ["y", "hy", "cy", "dx", "dhx", "dcx", "weight_hh_l0", "bias_ih_l0"])
def test_a_wrong_result_is_refused(quantity, tmp_path, monkeypatch, capsys):
    use_stub(monkeypatch, lambda name, array: array + 1e-3 if name == quantity else array)
    code, record = run_bench(tmp_path, "--cell", "lstm")
    assert code == 1
    forward, training = record["results"]
    assert forward["ok"] == (quantity not in ("y", "hy", "cy"))
    assert not training["ok"] and training["seconds"] == training["median_s"] == training["ratio"] == {}
    assert quantity in training["refusal"]
    assert "REFUSED" in capsys.readouterr().out


def test_nan_is_refused(tmp_path, monkeypatch, capsys):
    use_stub(monkeypatch, lambda name, array: array * np.nan if name == "dx" else array)
    code, record = run_bench(tmp_path, "--cell", "gru")
    assert code == 1
    assert [row["ok"] for row in record["results"]] == [True, False]


def test_an_exception_is_a_refusal(tmp_path, monkeypatch, capsys):
    use_stub(monkeypatch)

    def broken(*arguments, **options):
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr("stub_layer.StubLayer.backward", broken)
    code, record = run_bench(tmp_path, "--cell", "gru")
    assert code == 1
    assert "ZeroDivisionError: on purpose" in record["results"][1]["refusal"]


def test_a_wrong_onnx_graph_is_refused(tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    use_stub(monkeypatch)
    monkeypatch.setitem(peers.ONNX_GATE_ORDER, "gru", (0, 1, 2))
    code, record = run_bench(tmp_path, "--cell", "gru")
    assert code == 1
    assert "onnxruntime's" in record["results"][0]["refusal"]


@pytest.mark.parametrize("text", ["", "1,2,3,4", "1,2,3,4,5,6", "1,2,3,4,0", "1,2,3,4,-1", "a,b,c,d,e", "1.5,2,3,4,5"])
def test_malformed_shapes(text, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", "--shape", text])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert "T,B,I,H,L" in said and repr(text) in said


def test_shapes_are_parsed():
    assert speed.parse_shape("25,16,512,256,3") == speed.Shape(T=25, B=16, I=512, H=256, L=3)
    assert str(speed.Shape(1, 2, 3, 4, 5)) == "1,2,3,4,5"


def test_turns_alternate_and_calls_fill_a_turn(monkeypatch):
    order = []

    def one_turn(contender, samples, at_once):
        order.append(contender.name)
        return 1.0

    monkeypatch.setattr(speed, "one_turn", one_turn)
    contenders = [peers.Contender(name, lambda: None, None) for name in "abc"]
    seconds = speed.take_turns(contenders, 3)
    assert "".join(order) == "abccbaabc"
    assert seconds == {"a": [1.0] * 3, "b": [1.0] * 3, "c": [1.0] * 3}


def test_cuda_is_refused_where_it_is_missing(monkeypatch, capsys):
    use_stub(monkeypatch)
    assert cli.main([*SMALL, "--device", "cuda"]) == 1
    assert "CUDA" in capsys.readouterr().err


def test_the_cpu_engine_agrees(tmp_path, capsys):
    code, record = run_bench(tmp_path)
    assert code == 0, [row["refusal"] for row in record["results"]]
