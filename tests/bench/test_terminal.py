"""What commands print in terminals of several widths: no number is cut, nothing that is judged is lost."""

import json
import os
import pty
import random
import subprocess
import sys

import pytest

from numbarnn.bench import check, console, record
from numbarnn.bench.accuracy import Comparison
from numbarnn.bench.record import RESULTS as RECORDED
from numbarnn.bench.report import changes, result_of
from numbarnn.bench.tables import milliseconds, quotient
from numbarnn.bench.trace.record import from_json

WIDTHS = 80, 120
SMALL = "--rounds", "3", "--threads", "1"
# Prints every table at each width, one after the other: the terminal of a command is resized for the next.
AT_EACH_WIDTH = f"""
import fcntl, struct, sys, termios
from numbarnn import cli
from numbarnn.bench import console, kernels
print_table = console.print_table
def at_each_width(*arguments, **options):
    for columns in {WIDTHS}:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        print(f"= {{columns}}", flush=True)
        print_table(*arguments, **options)
    print("= 0", flush=True)
console.print_table = at_each_width
"""


def in_terminal(code):
    """Width -> the lines of the tables that code prints in a terminal; it must end with 0 or 1."""
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    child = subprocess.Popen(
        [sys.executable, "-c", AT_EACH_WIDTH + code], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE,
        env=environment | {"TERM": "xterm-256color", "PYTHONPATH": console.environment()["PYTHONPATH"]},
    )  # fmt: skip
    os.close(theirs)
    written = bytearray()
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed
            break
        written += part
    said = child.communicate()[1].decode()
    os.close(ours)
    assert child.returncode in (0, 1), said
    text = written.decode()
    for style in (*console.COLORS.values(), "\x1b[1m", "\x1b[0m"):
        text = text.replace(style, "")
    assert "\x1b" not in text
    found, width = {0: [], **{columns: [] for columns in WIDTHS}}, 0
    for line in text.splitlines():
        if line.startswith("= "):
            width = int(line.split()[1])
        else:
            found[width].append(line)
    for columns in WIDTHS:
        assert found[columns] and max(map(len, found[columns])) <= columns
    return found


def of_info(found):
    yield from (found["cpu"]["cores"], found["python"], found["numbarnn"])
    yield from (version for version in found["versions"].values() if version)


def of_check(rows):
    for group in (*check.by_run(one := [*map(Comparison.from_row, rows)]), *check.by_option(one)):
        worst = group.worst
        numbers = worst.error, worst.limit, worst.torch_error
        yield from (group.result, len(group.members), *map(check.number, numbers))


def of_bench(found):
    for row in found["results"]:
        yield from (*map(milliseconds, row["median_s"].values()), *map(quotient, row["ratio"].values()))
        yield ",".join(map(str, row["shape"].values()))
        yield from (f"{found / 1e6:.3g}" for found in row["peak_bytes"].values())


def of_stream(found):
    for row in found["results"]:
        yield from (f"{times[name] * 1e6:.1f}" for times in (row["median_s"], row["p99_s"]) for name in times)


def of_plan(found):
    for one in found["passes"]:
        for launch in one["launches"]:
            yield from (launch["blocks"], launch["threads"], launch["max_registers"], 8 * launch["cut"]["tiles"])
            yield from (f"{launch['shared_bytes'] / 1024:.1f}", f"{launch['microseconds']:.0f}")
            estimate = launch["estimate"]
            yield from (f"{estimate[part]:.2f}" for part in ("exchange", "read", "multiply", "add"))
            yield f"{launch['step_us']:.2f}"


def of_trace(found):
    made = from_json(found)
    yield from made.blocks
    yield from (f"{share:.0%}" for share in made.waiting())


COMMANDS = {
    "info": (("info",), of_info),
    "check": (("check", "--quick", "--device", "cpu", "--cell", "gru", "--schedule", "stepwise"), of_check),
    "bench": (("bench", "--device", "cpu", "--shape", "5,2,8,8,1", "--cell", "lstm", *SMALL), of_bench),
    "stream": (("bench", "--device", "cpu", "--stream", "--shape", "1,1,8,8,1", "--cell", "lstm", *SMALL), of_stream),
    "own cells": (("bench", "--device", "cpu", "--cell", "sru", "--shape", "5,2,8,8,1", *SMALL), of_bench),
    "plan": (("plan", "--hidden", "768,768", "--batch", "16", "--steps", "1024", "--profile", "h200", "--dtype",
              "float16", "--backward"), of_plan),
    "trace": (("trace", "--shape", "3,2,4,8,2"), of_trace),
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_number_of_the_json_is_in_the_table(command, tmp_path):
    """As a word of its own, so that none is cut, and no line is wider than the terminal."""
    if command in ("bench", "stream", "own cells"):
        pytest.importorskip("torch")
    arguments, numbers = COMMANDS[command]
    path = tmp_path / "answer.json"
    tables = in_terminal(f"sys.exit(cli.main({[*arguments, '--json', str(path)]}))")
    found = json.loads(path.read_text())
    check_words(tables, numbers(found))


def check_words(tables, expected):
    expected = {word for number in expected for word in str(number).split()} - {"-"}
    assert len(expected) > 3
    for columns in WIDTHS:
        missing = expected - {word.strip(";") for line in tables[columns] for word in line.split()}
        assert not missing, (columns, missing, "\n".join(tables[columns]))


def test_kernels():
    """Rows as they are recorded: compiling takes a minute."""
    row = {
        "name": "lstm_persistent_forward_training", "dtype": "float16", "layouts": "h768_b16", "arch": "sm_90",
        "registers": 221, "shared_bytes": 2048, "dynamic_shared_bytes": 18944, "spill_bytes": 72, "stack_bytes": 160,
        "threads_per_block": 256, "blocks_by_registers": 1, "ok": True, "error": None,
    }  # fmt: skip
    rows = [row, row | {"registers": 36, "spill_bytes": 0, "layouts": "layer0_of_h512_512_512_512_b64_dropout"}]
    tables = in_terminal(f"kernels.print_rows({rows!r})")
    check_words(tables, [value for row in rows for value in row.values() if value not in (True, None)])
    assert all(any(line.startswith("spills 72 bytes") for line in tables[columns]) for columns in WIDTHS)


def test_report_against_a_former_result():
    paths = [RECORDED / f"cpu-2026-11-{day}.json" for day in (22, 26)]
    tables = in_terminal(f"cli.main(['report', {str(paths[1])!r}, '--against', {str(paths[0])!r}])")
    found = changes(*(result_of(path.stem, record.read(path)) for path in paths))
    check_words(tables, [f"{number:.2f}" for _, _, before, now, _ in found for number in (before, now, now / before)])


def test_piped_output_is_as_wide_as_columns_says_or_100():
    code = (
        "from numbarnn.bench import console\nconsole.print_table('T', ['text', 'n'], [['word ' * 50, 1234567]], ['n'])"
    )
    for columns, width in ((None, 100), ("60", 60)):
        environment = {name: value for name, value in console.environment().items() if name != "COLUMNS"}
        environment |= {"COLUMNS": columns} if columns else {}
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                              env=environment)  # fmt: skip
        assert (
            max(map(len, said.stdout.splitlines())) == width and "1234567" in said.stdout and "\x1b" not in said.stdout
        )


@pytest.mark.parametrize("width", (40, 80, 120))
def test_any_table_keeps_all_its_words_and_its_width(width, monkeypatch):
    random_ = random.Random(width)
    monkeypatch.setenv("COLUMNS", str(width))
    for _ in range(200):
        columns = [f"c{i}" * random_.randint(1, 4) for i in range(random_.randint(1, 12))]
        right = [column for column in columns if random_.random() < 0.6]
        rows = [
            [
                f"{random_.random() * 10 ** random_.randint(-3, 6):.3f}" if column in right
                else " ".join("w" * random_.randint(1, 12) for _ in range(random_.randint(0, 12)))
                for column in columns
            ]
            for _ in range(4)
        ]  # fmt: skip
        lines = console.table_lines(columns, rows, right)
        words = [word.strip(";") for line in lines for word in line.split() if set(word) != {"-"}]
        missing = {word for row in rows for cell in row for word in cell.split()}.difference(words)
        assert not missing and max(map(len, lines)) <= width
