"""What `numbarnn check` tells and writes: rows, groups, tables."""

import json

import pytest

from numbarnn.bench.check import accuracy, summary
from numbarnn.bench.check.accuracy import Comparison


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
