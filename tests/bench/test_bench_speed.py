"""`numbarnn bench`: refuses times of wrong results, and records what it measured."""

from dataclasses import replace

import numpy as np
import pytest

import numbarnn
from numbarnn import cli
from numbarnn.bench import info
from numbarnn.bench.cases import cases, passes, shapes
from numbarnn.bench.check import accuracy
from numbarnn.bench.peers import cudnn, peers, torch_peer
from numbarnn.bench.speed import command as speed
from numbarnn.bench.speed import lineup, peak, timing
from numbarnn.bench.speed import record as bench_record
from numbarnn.engines.cpu.calls import address
from numbarnn.weights import gates
from stub_layer import use_stub

torch = pytest.importorskip("torch")

SMALL = ["bench", "--device", "cpu", "--shape", "3,2,4,5,1", "--rounds", "2", "--threads", "1"]


pytestmark = pytest.mark.usefixtures("short_turns")


def test_times_ratios_and_where_they_come_from(command, stub, capsys):
    record = command(*SMALL, "--shape", "2,1,3,4,2", "--cell", ",".join(cases.PEERS_CELLS))
    assert {"date", "commit", "clean", "driver", "device", "device_name", "environment", "results"} <= record.keys()
    assert record["kernels"] == bench_record.kernels_digest("cpu")
    assert {"load_average_before", "cores_busy_elsewhere"} <= record["method"].keys()
    assert record["method"]["rounds"] == 2
    assert not torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
    assert record["environment"]["versions"]["PyTorch"].startswith(torch.__version__.split("+")[0])
    assert len(record["results"]) == 4 * 2 * 2
    for row in record["results"]:
        assert row["ok"] and row["refusal"] is None and row["schedule"] == "auto"
        assert row["plan"].startswith("stepwise") and row["device_seconds"] == row["device_median_s"] == {}
        names = {"numbarnn", "torch"}
        if row["what"] == passes.FORWARD and peers.installed("onnx", "onnxruntime"):
            names |= {"onnxruntime"}
        assert set(row["seconds"]) == set(row["median_s"]) == names
        assert set(row["ratio"]) == names - {"numbarnn"}
        assert all(len(times) == 2 and min(times) > 0 for times in row["seconds"].values())
        assert all(check["ok"] for check in row["agreement"])
    assert "agree with PyTorch" in capsys.readouterr().out


QUANTITIES = ("y", "hy", "cy", "dx", "dhx", "dcx", "weight_hh_l0", "bias_ih_l0")
NO_NUMBER = ("y", "bias_ih_l0")  # one of either pass; the others with -m full


@pytest.mark.parametrize("off, quantity", [
    *((1e-3, quantity) for quantity in QUANTITIES),
    *(pytest.param(np.nan, quantity, marks=[] if quantity in NO_NUMBER else pytest.mark.full)
      for quantity in QUANTITIES),
])  # fmt: skip
def test_a_wrong_result_is_refused(quantity, off, command, monkeypatch, capsys):
    use_stub(monkeypatch, lambda name, array: array + np.float32(off) if name == quantity else array)
    record = command(*SMALL, "--cell", "lstm", code=1)
    forward, training = record["results"]
    assert forward["ok"] == (quantity not in ("y", "hy", "cy"))
    assert not training["ok"] and training["seconds"] == training["median_s"] == training["ratio"] == {}
    assert quantity in training["refusal"]
    assert "REFUSED" in capsys.readouterr().out


def test_an_exception_is_a_refusal(command, monkeypatch, stub, capsys):
    def broken(*arguments, **options):
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr("stub_layer.StubLayer.backward", broken)
    record = command(*SMALL, "--cell", "gru", code=1)
    assert "ZeroDivisionError: on purpose" in record["results"][1]["refusal"]


def test_a_wrong_onnx_graph_has_no_time(command, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    use_stub(monkeypatch)
    monkeypatch.setitem(gates.ONNX, "gru", ("r", "z", "n"))
    record = command(*SMALL, "--cell", "gru", code=1)
    forward = record["results"][0]
    assert "onnxruntime's" in forward["left_out"]["onnxruntime"] and "onnxruntime" not in forward["seconds"]
    assert forward["ok"] and "onnxruntime, 1 cases such as gru" in capsys.readouterr().out


def test_a_schedule_that_refuses_is_a_row(command, monkeypatch, stub, capsys):
    make_layer = peers.make_layer

    def choosy(case, device, parameters, schedule="auto", seed=0):
        layer = make_layer(case, device, parameters, schedule, seed)
        if schedule == "stepwise":

            def explain(shape):
                raise RuntimeError("H=5 does not fit")

            layer.explain = explain
        return layer

    monkeypatch.setattr(peers, "make_layer", choosy)
    record = command(*SMALL, "--cell", "gru", "--schedule", "auto,stepwise", code=1)
    rows = [(row["what"], row["schedule"], row["refusal"]) for row in record["results"]]
    reason = "RuntimeError: H=5 does not fit"
    assert rows == [(what, *rest) for what in passes.WHOLE for rest in (("auto", None), ("stepwise", reason))]
    assert "REFUSED: RuntimeError: H=5" in capsys.readouterr().out


def test_several_dtypes_and_schedules_take_turns(command, monkeypatch, capsys):
    """PyTorch has one turn per round for all schedules, so all rows of a pass show the same times of it."""
    pytest.importorskip("ml_dtypes")
    use_stub(monkeypatch)
    record = command(*SMALL, "--cell", "gru", "--schedule", "auto,stepwise", "--dtype", "float64,bfloat16")
    rows = record["results"]
    assert [row["dtype"] for row in rows] == ["float64"] * 4 + ["bfloat16"] * 4
    for one, other in zip(rows[::2], rows[1::2], strict=True):
        assert (one["schedule"], other["schedule"]) == ("auto", "stepwise")
        assert one["seconds"]["torch"] == other["seconds"]["torch"]
        assert one["seconds"]["numbarnn"] != other["seconds"]["numbarnn"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_goes_to_pytorch_and_back_bit_for_bit(dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    problem = cases.make_instance(cases.Case("gru", 2, 3, 4, (5,), dtype=dtype))
    tensor = torch_peer.numpy_to_torch(problem.x)
    assert tensor.dtype == getattr(torch, dtype)
    back = torch_peer.torch_to_numpy(tensor)
    assert back.dtype == problem.x.dtype == dtype and (back == problem.x).all()
    np.testing.assert_array_equal(tensor.double().numpy(), problem.float64.x)


def test_the_limit_is_twice_pytorchs_error_where_that_is_one_of_rounding():
    case = cases.Case("gru", 2, 3, 4, (5,))

    def judged(value, torchs):
        contender = peers.Contender("other", lambda: None, lambda _: {"y": np.full(3, value, np.float32)})
        truth, torchs = {"y": np.zeros(3)}, {"y": np.full(3, torchs, np.float32)}
        return lineup.disagreement(lineup.compare(case, contender, truth, torchs))

    assert judged(0.0, 2e-6) is judged(3.9e-6, 2e-6) is None
    assert "other's y: is 4.1e-06 from float64, more than 4.0e-06" in judged(4.1e-6, 2e-6)
    assert "more than 7.2e-07" in judged(1e-3, 1e-3)  # PyTorch computes something else


def test_a_pytorch_that_computes_something_else_is_no_measure():
    """Its error beyond PEER_TRUST floors lets nobody err as much; with TF32 the floor is that of 10 bits."""
    case = cases.Case("gru", 2, 3, 4, (5,))
    floor = accuracy.floor(case)
    assert lineup.limit(case, accuracy.PEER_TRUST * floor) == 2 * accuracy.PEER_TRUST * floor
    assert lineup.limit(case, 1.01 * accuracy.PEER_TRUST * floor) == floor
    rounded = replace(case, allow_tf32=True)
    assert lineup.limit(rounded, 0.0) == accuracy.floor(replace(case, dtype="float16")) > 1000 * floor
    assert lineup.limit(replace(case, allow_tf32="3x"), 0.0) == floor
    assert lineup.largest_trusted(rounded, None) == accuracy.PEER_TRUST * lineup.limit(rounded, 0.0)


def test_a_pytorch_whose_results_are_wrong_has_no_time(command, monkeypatch, stub, capsys):
    right = lineup.peers.torch_contender

    def wrong(problem, train, device="cpu"):
        contender = right(problem, train, device)
        if problem.case.dtype == "float64":
            return contender
        results = contender.results
        return replace(contender, results=lambda returned: {q: v for q, v in results(returned).items()} | {
            "y": results(returned)["y"] + np.float32(0.01)})  # fmt: skip

    monkeypatch.setattr(lineup.peers, "torch_contender", wrong)
    record = command(*SMALL, "--cell", "gru", "--dtype", "float32")
    for row in record["results"]:
        assert "torch's y: is 1.0e-02 from float64" in row["left_out"]["torch"] and "torch" not in row["seconds"]
        assert row["ok"] and row["seconds"]["numbarnn"]


@pytest.mark.parametrize("arguments, words", [
    (["--schedule", "fast"], "expected auto, stepwise"),
    (["--dtype", "float8"], "expected float32, float64"),
    (["--set", "mine"], "invalid choice: 'mine'"),
    (["--set", "schedules", "--shape", "1,1,1,1,1"], "not allowed with"),
])  # fmt: skip
def test_unknown_names(arguments, words, refused):
    assert words in refused("bench", *arguments)


@pytest.mark.parametrize("text", ["", "1,2,3,4", "1,2,3,4,5,6", "1,2,3,4,0", "1,2,3,4,-1", "a,b,c,d,e", "1.5,2,3,4,5"])
def test_malformed_shapes(text, refused):
    said = refused("bench", "--shape", text)
    assert "T,B,I,H,L" in said and repr(text) in said


def test_turns_alternate(monkeypatch):
    order = []

    def one_turn(contender, samples, at_once):
        order.append(contender.name)
        return 1.0

    monkeypatch.setattr(timing, "one_turn", one_turn)
    contenders = [peers.Contender(name, lambda: None, None) for name in "abc"]
    turns = timing.take_turns(contenders, 3)
    assert "".join(order) == "abccbaabc"
    assert turns == {name: timing.Turns([1.0] * 3) for name in "abc"}


def test_calls_of_a_turn_on_a_gpu_are_made_back_to_back(monkeypatch):
    """One sample, which waits for the device once at its end; the GPU's clock gets as many calls."""
    did = []
    contender = peers.Contender("a", lambda: did.append("call"), None, lambda: did.append("wait"))
    assert timing.calls_per_turn(contender, gpu=True)[0] == 1
    did.clear()
    timing.timed(contender, 3)
    assert did == ["wait", "call", "call", "call", "wait"]
    clocked = []
    clock = lambda one, calls, call_s: (0.5, not clocked.append(calls) and call_s > 1)  # noqa: E731
    monkeypatch.setattr(timing, "device_time", clock)
    turns = timing.take_turns([contender], 2, gpu=True)["a"]
    assert turns.device == [0.5, 0.5] and len(turns.call) == 2 and min(clocked) >= 1 and turns.behind == 2


@pytest.fixture
def fake_clock(monkeypatch):
    """(what was done, a list of whether the GPU has come to the first event when it is asked, in turns)."""
    did, begun = [], []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            did.append("event")

        def query(self):
            return begun.pop(0)

        def synchronize(self):
            did.append("wait")

        def elapsed_time(self, end):
            return 6.0  # milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: did.append(cycles / timing.GPU_CLOCK_HZ))
    return did, begun


def test_the_gpus_clock_runs_around_calls_with_a_head_start(fake_clock):
    did, begun = fake_clock
    contender, head_start = peers.Contender("a", lambda: did.append("call"), None), timing.HEAD_STARTS_S[0]
    begun += [False]
    seconds, ahead = timing.device_time(contender, calls=100, call_s=head_start / 3 / timing.SLACK)
    assert seconds == pytest.approx(2e-3) and ahead
    assert did == [pytest.approx(head_start), "event", "call", "call", "call", "event", "wait"]


def test_a_host_that_falls_behind_gets_a_longer_head_start_and_is_told_of(fake_clock):
    did, begun = fake_clock
    contender, (first, second) = peers.Contender("a", lambda: did.append("call"), None), timing.HEAD_STARTS_S
    begun += [True, False]
    assert timing.device_time(contender, calls=1, call_s=1.0) == (pytest.approx(6e-3), True)
    assert did == [first, "event", "call", "event", "wait", second, "event", "call", "event", "wait"]
    begun += [True, True]
    assert timing.device_time(contender, calls=1, call_s=1.0) == (pytest.approx(6e-3), False)


def test_commit_is_that_of_numbarnns_own_tree(tmp_path, monkeypatch):
    assert info.commit() == "unknown" or len(info.commit().removesuffix("-dirty")) == 40
    monkeypatch.setattr("numbarnn.__file__", str(tmp_path / "site-packages" / "numbarnn" / "__init__.py"))
    assert info.commit() == "unknown"


def test_cuda_is_refused_where_it_is_missing(stub, cannot):
    assert "'cuda' cannot be used" in cannot(*SMALL, "--device", "cuda")


def test_the_cpu_engine_agrees(command, capsys):
    command(*SMALL)


@pytest.mark.gpu
@pytest.mark.real_gpu
def test_both_clocks_on_a_gpu(command):
    """The GPU needs no longer than the caller waits, but for the scatter of such short calls."""
    arguments = ["bench", "--device", "cuda", "--shape", "20,4,64,64,1", "--rounds", "3", "--schedule", "stepwise"]
    record = command(*arguments, "--cell", "lstm,gru")
    assert record["driver"] and record["device_name"] == record["environment"]["gpus"][0]["name"]
    with_cudnn = cudnn.why_not() is None
    for row in record["results"]:
        assert set(row["seconds"]) == set(row["device_seconds"]) >= {"numbarnn", "torch"}
        assert (row["best_cudnn"] in row["device_seconds"]) == with_cudnn, row["left_out"]
        for name, seconds in row["device_median_s"].items():
            assert 0 < seconds < 1.5 * row["median_s"][name]


def test_operations_of_a_call():
    """Against what the weights' sizes say."""
    for cell, make, sizes in (("lstm", numbarnn.LSTM, (5, 3, 7, 11, 3)), ("gru", numbarnn.GRU, (2, 1, 4, 6, 1))):
        shape = dict(zip("TBIHL", sizes, strict=True))
        layer = make(shape["I"], shape["H"], num_layers=shape["L"], device="cpu")
        products = sum(value.size for name, value in layer.parameters.items() if name.startswith("weight"))
        steps = shape["T"] * shape["B"]
        assert peak.operations(cell, shape, training=False) == 2 * steps * products
        assert peak.operations(cell, shape, training=True) == 6 * steps * products


def test_peak_is_of_products_that_are_right(monkeypatch):
    """As many operations as it counts, and not slower than a product of NumPy's by much."""
    kept = []
    monkeypatch.setattr(peak, "CALLS", 3)
    monkeypatch.setattr(peak, "address", lambda array: kept.append(array) or address(array))
    assert peak.cpu_peak(2) > 1e8
    a, panel, out = kept
    np.testing.assert_array_equal(out[: len(a)], a @ panel)
    np.testing.assert_array_equal(out[-len(a) :], a @ panel)


# ------------------------------------------------------------------------------------------------------ fewer of them
def test_only_takes_the_rows_with_a_text_in_their_name(command, stub):
    shapes = [*SMALL, "--shape", "2,1,3,4,2", "--shape", "2,1,3,5,2"]
    record = command(*shapes, "--only", "gru 2,1,3,4", "--only", "lstm 3,2")
    rows = {(row["cell"], tuple(row["shape"].values())) for row in record["results"]}
    assert rows == {("gru", (2, 1, 3, 4, 2)), ("lstm", (3, 2, 4, 5, 1))}


def test_only_that_leaves_nothing_is_refused(cannot):
    assert "--only lstm 9,9 leaves nothing" in cannot(*SMALL, "--only", "lstm 9,9", code=2)


@pytest.mark.parametrize(("more", "rounds"), [([], 5), (["--rounds", "2"], 2), (["--rounds", "9"], 5)])
def test_quick_is_a_set_and_few_rounds(more, rounds, monkeypatch):
    asked = []
    monkeypatch.setattr(speed, "take_times", lambda args, where, todo, *rest: asked.append((where, todo)) or [])
    assert cli.main(["bench", "--quick", "--device", "cpu", *more]) == 0
    [(where, todo)] = asked
    assert where.rounds == rounds and {shape for _, shape, _, _ in todo} == set(shapes.SETS["quick"])


def test_more_threads_than_could_ever_run_are_refused(cannot):
    """They would wait for each other: PyTorch's and the engine's."""
    most = 4 * info.core_count()
    said = cannot("bench", "--device", "cpu", "--shape", "3,2,4,5,1", "--threads", str(most + 1))
    assert f"take at most {most}" in said
