"""What `numbarnn check` tells and writes: groups, tables, the page, the picture."""

import json
import re
import sys
from xml.etree import ElementTree

import pytest

from numbarnn import cli
from numbarnn.bench import pages
from numbarnn.bench.check import accuracy, page, summary
from numbarnn.bench.check.accuracy import Comparison
from numbarnn.common import install
from stub_layer import use_stub


def row(quantity="y", error=1e-7, limit=1e-6, ok=True, options="T=1 float32", mode="training", **more):
    return Comparison("gru", options, more.pop("engine", "cpu"), "stepwise", mode, quantity, error, limit, ok, **more)


REFUSAL = row("plan", None, None, mode=accuracy.REFUSED, message="does not fit", uses=("resets",))
NOTE = row("cuDNN", None, None, mode=accuracy.PEER, message="refuses: <no> resets", uses=("resets",))


def test_ratios_are_to_cudnn_where_it_ran():
    assert row().ratio is None
    assert row(torch_error=2e-7).ratio == pytest.approx(0.5)
    assert row(torch_error=2e-7, cudnn_error=5e-8).ratio == pytest.approx(2.0)
    assert row(error=0.0, torch_error=0.0).ratio == 1.0 and row(torch_error=0.0).ratio == float("inf")


def test_rows_survive_json():
    for one in (row(uses=("bias", "resets"), cudnn_error=1e-8), REFUSAL):
        assert Comparison.from_row(json.loads(json.dumps(one.as_row()))) == one


def test_groups_by_option_hold_a_case_once_for_each_of_its_options():
    rows = [row(), row(uses=("bias", "resets"), torch_error=1e-8), row("hy", uses=("resets",)), REFUSAL, NOTE]
    groups = {group.key[0]: group for group in summary.by_option(rows)}
    assert list(groups) == [summary.PLAIN, "bias", "resets"]
    resets = groups["resets"]
    assert (len(resets.members), resets.failed, resets.result) == (2, 0, "ok")
    assert resets.median_ratio == pytest.approx(10) and resets.within_twice == 0.0
    assert groups[summary.PLAIN].median_ratio is None
    assert [g.key for g in summary.by_option([row(), row(engine="sim")], engines=True)] == [
        ("cpu", summary.PLAIN),
        ("sim", summary.PLAIN),
    ]


def test_groups_by_quantity_take_the_parameters_of_all_layers_together():
    rows = [row("y"), row("weight_hh_l0"), row("weight_hh_l1_reverse", engine="sim"), row("weight_hh_l1"), REFUSAL]
    groups = {group.key: len(group.members) for group in summary.by_quantity(rows)}
    assert groups == {("cpu", "y"): 1, ("cpu", "weight_hh"): 2, ("sim", "weight_hh"): 1}


def test_the_worst_is_a_failure_then_what_is_nearest_to_its_limit():
    near, far = row(error=9e-7), row(error=1e-8)
    dropout = row("dropout rate", error=99e-8)
    assert summary.Group((), [far, near, dropout]).worst is near
    failure = row(error=None, limit=None, ok=False, message="boom")
    assert summary.Group((), [near, failure]).worst is failure


def test_columns_that_nobody_fills_are_left_out():
    columns, _ = summary.table(summary.by_option([row()]), ("option",))
    assert columns[0] == "result" and not {"PyTorch", "cuDNN", "ratio"} & set(columns)
    columns, (cells,) = summary.table(summary.by_option([row(cudnn_error=5e-8)]), ("option",))
    assert dict(zip(columns, cells, strict=True))["cuDNN"] == "5.0e-08"


def test_a_long_message_is_cut_in_the_table():
    told = summary.failure_row(row(error=None, limit=None, ok=False, message="word\n " * 1000))[-1]
    assert len(told) <= summary.LETTERS_SHOWN and told.startswith("word word") and told.endswith("...")


def test_the_page_stands_alone_and_tells_everything():
    pytest.importorskip("matplotlib")
    failure = row("hy", 1e-3, ok=False, uses=("proj_size",), torch_error=1e-7, message="<b>wrong</b>")
    text = page.html([row(torch_error=1e-7), failure, REFUSAL, NOTE], "1 of 2 comparisons FAILED")
    tree = ElementTree.fromstring(text.removeprefix("<!doctype html>").replace('<meta charset="utf-8">', ""))
    tags = {element.tag.rpartition("}")[2] for element in tree.iter()}
    assert {"svg", "table", "style"} <= tags and not {"script", "link", "img", "iframe"} & tags
    named = [(name.rpartition("}")[2], value) for element in tree.iter() for name, value in element.items()]
    assert all(value.startswith("#") for name, value in named if name in ("src", "href"))
    assert not re.findall(r"url\((?!#)", text)
    for words in ("1 of 2 comparisons FAILED", "1 failures", "proj_size", "does not fit", "refuses: &lt;no&gt; resets"):
        assert words in text
    assert "<b>wrong" not in text and "&lt;b&gt;wrong" in text


def test_the_picture_has_a_line_for_every_dtype():
    pytest.importorskip("matplotlib")
    rows = [row(error=e, options=f"T=1 {d}", torch_error=1e-7) for e in (1e-8, 5e-7) for d in ("float32", "float16")]
    rows += [REFUSAL, NOTE, row(error=None, limit=None, ok=False, message="boom")]
    left, right = page.figure(rows).axes
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["float32", "float16"]
    assert "4 comparisons" in left.get_xlabel() and "PyTorch" in right.get_xlabel()
    assert page.png(rows).startswith(b"\x89PNG")
    ElementTree.fromstring(pages.svg(page.figure(rows)))


def test_the_command_writes_both(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    use_stub(monkeypatch)
    paths = tmp_path / "page.html", tmp_path / "picture.png"
    arguments = ["--device", "cpu", "--quick", "--cell", "lstm", "--html", str(paths[0]), "--png", str(paths[1])]
    assert cli.main(["check", *arguments]) == 0
    assert "proj_size" in paths[0].read_text() and paths[1].stat().st_size > 10_000
    assert sorted(tmp_path.iterdir()) == sorted(paths)


@pytest.mark.parametrize("option", ("--html", "--png"))
def test_without_matplotlib_the_command_says_so_before_it_works(option, tmp_path, monkeypatch, cannot):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr("numbarnn.bench.check.command.check_device", lambda *a: pytest.fail("worked first"))
    assert install.command("cli") in cannot("check", "--device", "cpu", option, str(tmp_path / "x"))
    assert not list(tmp_path.iterdir())
