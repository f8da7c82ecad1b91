"""Shapes with words: both directions, several lengths."""

from dataclasses import replace

import numpy as np
import pytest

from numbarnn.bench import cases, lineup, record, report, shapes
from numbarnn.bench.peers import peers, torch_peer
from numbarnn.bench.shapes import Shape

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("short_turns")
SMALL = ["bench", "--device", "cpu", "--rounds", "3", "--threads", "1"]
CASE = cases.Case("lstm", 4, 3, 5, (6, 6, 6), gradients="y")


def results(contender):
    return contender.results(contender.call())


def assert_same(found, wanted, limit=2e-6):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(np.array(found[name]), np.array(value), rtol=0, atol=limit, err_msg=name)


# ------------------------------------------------------------------------------------------------------------ the words
def test_words_stand_behind_the_sizes():
    shape = shapes.parse_shape("8, 128,1024,1024,3, lengths")
    assert shape == Shape(8, 128, 1024, 1024, 3, ("lengths",)) and str(shape) == "8,128,1024,1024,3,lengths"
    assert shape.sizes == {"T": 8, "B": 128, "I": 1024, "H": 1024, "L": 3}
    assert shapes.parse_shape("25,16,512,256,3") == Shape(T=25, B=16, I=512, H=256, L=3)
    assert shapes.parse_shape("4,2,3,3,1,bidirectional,lengths").options == {"bidirectional": True, "lengths": "half"}


@pytest.mark.parametrize("text", ["1,2,3,4,5,ring", "1,2,3,4,5,lengths,lengths", "1,2,3,4,lengths"])
def test_other_words_are_refused(text, refused):
    said = refused("bench", "--shape", text)
    assert "words of bidirectional, lengths" in said and repr(text) in said


def test_who_has_no_such_forms_refuses_them(refused, cannot):
    assert "T,B,I,H,L, five whole numbers" in refused("trace", "--shape", "1,2,3,4,5,lengths")
    said = cannot("bench", "--cell", "sru", "--device", "cpu", "--shape", "1,2,3,4,5,bidirectional", code=2)
    assert "--cell sru is timed over whole sequences, in one direction: got --shape" in said
    said = cannot("bench", "--stream", "--device", "cpu", "--shape", "1,2,3,4,5,bidirectional", code=2)
    assert "in one direction" in said and "got --shape 1,2,3,4,5,bidirectional" in said


# --------------------------------------------------------------------------------------------------------- who computes
def test_both_directions_and_several_lengths_against_pytorch_layer_by_layer():
    instance = cases.make_instance(replace(CASE, T=6, B=4, bidirectional=True, lengths="half"))
    assert instance.lengths.tolist() == [3, 4, 5, 6] and instance.padding.any()
    wanted = torch_peer.torch_results(instance)
    assert_same(results(torch_peer.torch_contender(instance, True)), wanted)
    assert_same(results(peers.numbarnn_contender(instance, shapes.TRAINING)), wanted)


def test_the_command_times_them(command, page, capsys, tmp_path):
    shapes_given = ["4,2,3,5,2,bidirectional", "4,3,3,5,2,bidirectional,lengths"]
    arguments = [word for shape in shapes_given for word in ("--shape", shape)]
    found = command(*SMALL, *arguments, "--cell", "gru")
    assert [",".join(map(str, [*row["shape"].values(), *row["form"]])) for row in found["results"][::2]] == shapes_given
    said = capsys.readouterr().out
    assert "4,2,3,5,2,bidirectional" in said
    for row in found["results"]:
        assert set(row["seconds"]) >= {"numbarnn", "torch"}
        assert row["left_out"].get("onnxruntime", lineup.OTHER_FORM) == lineup.OTHER_FORM
    text = page(found)
    assert len(report.result_of("x", record.read(tmp_path / "record.json")).entries) == 4
    assert all(f"gru {shape} float32 fwd" in text for shape in shapes_given)
