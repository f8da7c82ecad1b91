"""What commands print in terminals of several widths: no number is cut, nothing that is judged is lost."""

import io
import json
import sys
from contextlib import redirect_stdout

import pytest

from numbarnn import cli
from numbarnn.bench import check, console
from numbarnn.bench.tables import milliseconds, quotient, three_digits
from numbarnn.bench.trace.command import waiting

WIDTHS = 80, 120
SMALL = "--rounds", "3", "--threads", "1"


@pytest.fixture
def tables(monkeypatch):
    """Width -> the lines of all tables that are printed, in either width."""
    lines, print_table = {width: [] for width in WIDTHS}, console.print_table

    def at_each_width(*arguments, **options):
        for width in WIDTHS:
            monkeypatch.setenv("COLUMNS", str(width))
            with redirect_stdout(io.StringIO()) as written:
                print_table(*arguments, **options)
            lines[width] += written.getvalue().splitlines()

    monkeypatch.setattr(console, "print_table", at_each_width)
    return lines


def check_words(tables, expected):
    """Each number is a word of its own, so that none is cut, and no line is wider than the terminal."""
    expected = {word for number in expected for word in str(number).split()} - {"-"}
    assert len(expected) > 3
    for width, lines in tables.items():
        missing = expected - {word for line in lines for word in line.split()}
        assert not missing and max(map(len, lines)) <= width, (width, missing, "\n".join(lines))


def of_info(found):
    yield from (found["cpu"]["cores"], found["python"], found["numbarnn"])
    yield from (version for version in found["versions"].values() if version)


def of_check(rows):
    for group in check.by_run(rows).values():
        yield from check.group_cells(group)[:-1]


def of_bench(found):
    for row in found["results"]:
        yield from (*map(milliseconds, row["median_s"].values()), *map(quotient, row["ratio"].values()))
        yield ",".join(map(str, row["shape"].values()))
        yield from map(three_digits, row["peak_bytes"].values())


def of_stream(found):
    for row in found["results"]:
        yield from (f"{times[name] * 1e6:.1f}" for times in (row["median_s"], row["p99_s"]) for name in times)


def of_plan(found):
    for launch in (launch for one in found["passes"] for launch in one["launches"]):
        yield from (launch["blocks"], launch["threads"], launch["max_registers"], 8 * launch["tile"]["n8"])
        yield from (f"{launch['shared_bytes'] / 1024:.1f}", f"{launch['microseconds']:.0f}")
        yield from (f"{launch['estimate'][part]:.2f}" for part in ("exchange", "read", "multiply", "add"))
        yield f"{launch['step_us']:.2f}"


def of_trace(found):
    yield from (*(block["name"] for block in found["blocks"]), *(f"{share:.0%}" for share in waiting(found)))


BENCH = "bench", "--device", "cpu", *SMALL
COMMANDS = {
    "info": (("info",), of_info),
    "check": (("check", "--quick", "--device", "cpu", "--cell", "gru", "--schedule", "stepwise"), of_check),
    "bench": ((*BENCH, "--shape", "5,2,8,8,1", "--cell", "lstm"), of_bench),
    "stream": ((*BENCH, "--stream", "--shape", "1,1,8,8,1", "--cell", "lstm"), of_stream),
    "own cells": ((*BENCH, "--cell", "sru", "--shape", "5,2,8,8,1"), of_bench),
    "plan": (("plan", "--hidden", "768,768", "--batch", "16", "--steps", "1024", "--profile", "h200", "--dtype",
              "float16", "--backward"), of_plan),
    "trace": (("trace", "--shape", "3,2,4,8,2"), of_trace),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_every_number_of_the_json_is_in_the_table(name, tables, tmp_path):
    if name in ("bench", "stream", "own cells"):
        pytest.importorskip("torch")
    arguments, numbers = COMMANDS[name]
    assert cli.main([*arguments, "--json", str(tmp_path / "answer.json")]) in (0, 1)
    check_words(tables, numbers(json.loads((tmp_path / "answer.json").read_text())))


def test_colors_are_for_terminals_alone(monkeypatch, capsys):
    """As wide as `COLUMNS` says, or 100."""
    for terminal in (False, True):
        monkeypatch.setattr(sys.stdout, "isatty", lambda terminal=terminal: terminal, raising=False)
        for columns, width in ((None, 100), ("60", 60)):
            monkeypatch.delenv("NO_COLOR", raising=False)
            monkeypatch.setenv("COLUMNS", columns) if columns else monkeypatch.delenv("COLUMNS", raising=False)
            console.print_table("T", ["text", "n", "result"], [["word " * 50, 1234567, "FAILED"]], ["n"])
            said = capsys.readouterr().out
            assert "1234567" in said and ("\x1b[1;31mFAILED\x1b[0m" in said) == ("\x1b" in said) == terminal
            assert terminal or max(map(len, said.splitlines())) == width
