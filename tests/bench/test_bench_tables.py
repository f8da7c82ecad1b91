"""The tables of times are what the records say; what a record carries, and what speaks against its times."""

import copy
import json
import shlex

import pytest

from numbarnn import cli
from numbarnn.bench import tables
from numbarnn.bench.cases.shapes import TF32
from numbarnn.bench.speed import record, trust

OLD_GPU = tables.RESULTS / "h200-2026-11-20-lstm-float16.json"
CPU = tables.RESULTS / "cpu-2026-11-26.json"


@pytest.fixture
def results(tmp_path, monkeypatch):
    """An empty folder in place of the records; a function that adds one there, made of a recorded one."""
    folder = tmp_path / "results"
    folder.mkdir()
    monkeypatch.setattr(tables, "RESULTS", folder)

    def add(change=lambda one: None, name="one", source=OLD_GPU):
        one = copy.deepcopy(json.loads(source.read_text()))
        change(one)
        (folder / f"{name}.json").write_text(json.dumps(one))

    return add


def as_new(one, digest=None, clean=True):
    """An old record as one of today: quiet machine, kernels, and cuDNN called directly."""
    one |= {"commit": "a" * 40, "clean": clean, "kernels": digest or record.kernels_digest("cuda")}
    one["method"] |= {"cores_busy_elsewhere": 0.1}
    for row in one["results"]:
        row |= {"tf32": False, "host_behind": {"numbarnn": 0, "torch": 0}, "left_out": {}, "notes": {}}
        row["device_seconds"] |= {
            f"cudnn {name}": [times * seconds for times in row["device_seconds"]["torch"]]
            for name, seconds in (("standard", 2.0), ("persist_static", 0.5))
        }
        row["seconds"] |= {name: times for name, times in row["device_seconds"].items() if name not in row["seconds"]}


def gpu():
    """The table of a GPU, as one line."""
    return tables.gpu().replace("\n", " ")


def headline():
    return tables.headline().replace("\n ", "")


# -------------------------------------------------------------------------------------------------------------- pages
def read(page):
    return (tables.ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", tables.PAGES)
def test_pages_are_what_the_records_say(page):
    text = read(page)
    assert tables.rendered(page, text) == text, "run: python -m numbarnn.bench.tables"


def test_the_check_says_what_differs(tmp_path, monkeypatch, capsys):
    for page in tables.PAGES:
        changed = tmp_path / page
        changed.parent.mkdir(exist_ok=True)
        changed.write_text(read(page).replace("4.72 ms", "4.8 ms"), encoding="utf-8")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    assert tables.main(["--check"]) == 1 and "4.72 ms" in capsys.readouterr().out
    assert tables.main([]) == 0 and tables.main(["--check"]) == 0


def test_a_page_without_a_part_is_refused():
    with pytest.raises(ValueError, match=r"notebooks/speed\.md must have the parts gpu, cpu"):
        tables.rendered("notebooks/speed.md", "<!-- table: gpu -->\n<!-- end of table -->")


@pytest.mark.parametrize("part", ("gpu", "cpu"))
def test_the_quoted_command_takes_the_same_times(part):
    text = tables.rendered("notebooks/speed.md", read("notebooks/speed.md"))
    section = text.partition(f"<!-- table: {part} -->")[2].partition("<!-- end of table -->")[0]
    words = shlex.split(section.partition("```bash\n")[2].partition("\n```")[0])
    assert words[0] == "numbarnn" and words[-2:] == ["--json", "FILE"]
    parser, _ = cli.build_parser("bench")
    args = parser.parse_args(words[1:-2])
    _, records = tables.table("cuda" if part == "gpu" else "cpu", tables.SETS[args.set])
    assert records and args.device == records[0]["device"]
    for one in records:
        assert args.rounds >= one["method"]["rounds"]
        for row in one["results"]:
            assert row["cell"] in args.cell and row["dtype"] in args.dtype and row["schedule"] in args.schedule
            assert tables.shape_of(row) in tables.SETS[args.set]
            assert args.device == "cpu" or row["dtype"] != "float32" or row["tf32"] in [TF32[w] for w in args.tf32]


def test_numbers_are_those_of_the_file():
    rows = json.loads(OLD_GPU.read_text())["results"]
    row = next(row for row in rows if (row["schedule"], row["what"]) == ("auto", "forward"))
    ours, theirs = (sorted(row["device_seconds"][name])[1] * 1e3 for name in ("numbarnn", "torch"))
    assert f"{ours:.2f} ms forward" in tables.headline() and f": {theirs:.2f} and" in tables.headline()
    assert f"{ours:.2f}? (0.85)" in tables.gpu()


# ------------------------------------------------------------------------------------------------- what a table says
def test_an_old_record_says_that_its_kernels_are_others(results):
    results()
    assert "with other kernels: commit 0106d8d3 with changes that were not committed." in gpu()
    assert "measured 2026-11-20 with an earlier revision" in headline()


def test_a_table_whose_kernels_changed_says_so_by_itself(results, monkeypatch):
    results(as_new)
    assert f"at commit {'a' * 8}." in tables.gpu() and "other kernels" not in tables.gpu()
    monkeypatch.setattr(record, "kernels_digest", lambda device: "something else")
    assert f"with other kernels: commit {'a' * 8}." in tables.gpu() and "earlier revision" in tables.headline()


def test_ratios_are_against_the_fastest_algorithm_then_pytorchs_choice(results):
    results(as_new)
    said = gpu()
    assert "| 1.75 (1.70p, 0.85) |" in said and "called directly as a CUDA graph" in said
    assert "the fastest of cuDNN's algorithms: 1.03 and 3.35" in headline()


def test_the_newest_record_of_a_cell_and_dtype_counts(results):
    def slower(one):
        one["date"] = "2026-12-01T00:00:00+00:00"
        for row in one["results"]:
            row["device_seconds"] = {name: [10 * t for t in times] for name, times in row["device_seconds"].items()}

    results()
    results(slower, "a_first_by_name")
    results(lambda one: one.update(device_name="another", date="2026-01-01"), "other")
    assert "17.5 ms forward" in headline()


def test_a_newer_device_without_rows_for_the_tables_leaves_them(results):
    """Single steps and DeepBench's problems are records too: of them no table is made, and none is lost."""
    results()
    before = tables.gpu(), tables.headline()

    def other(one):
        one |= {"device_name": "NVIDIA H100", "date": "2026-12-01T00:00:00+00:00"}
        one["results"] = [row | {"schedule": "persistent"} for row in one["results"]]

    results(other, "other")
    assert (tables.gpu(), tables.headline()) == before and "NVIDIA H200" in before[1]


def test_nothing_recorded_is_said(results):
    assert tables.gpu() == "No times on a GPU have been recorded yet."
    assert "No times on a GPU" in tables.headline()


@pytest.mark.parametrize("spoil, reason", [
    (lambda row: row["host_behind"].update(numbarnn=2), "the GPU waited for the host in 2 of 3 rounds of numbarnn"),
    (lambda row: row["device_seconds"].update(numbarnn=[1e-3, 2e-3, 4e-3]), "times of a contender scatter"),
    (lambda row: row["device_seconds"].update({n: t[:2] for n, t in row["device_seconds"].items()}), "2 rounds only"),
])  # fmt: skip
def test_what_is_not_to_be_trusted_has_a_mark(results, spoil, reason):
    results(as_new)
    assert "?" not in tables.gpu()

    def change(one):
        as_new(one)
        spoil(next(row for row in one["results"] if row["schedule"] == "auto"))

    results(change)
    said = gpu()
    assert said.count("? (") == 1 and reason in said
    assert "in doubt by the benchmark's own rule" in headline()


def test_the_headline_begins_with_a_time_that_is_trusted(results):
    """The CPU's, as long as the GPU's was measured with an earlier revision or is in doubt."""
    results()
    gpu_first = headline()
    assert gpu_first.startswith("LSTM of 1024 steps")
    results(name="cpu", source=CPU)
    assert headline().startswith("LSTM of 25 steps") and gpu_first.partition(" See")[0] in headline()
    results(as_new)
    assert headline().startswith("LSTM of 1024 steps") and "25 steps" not in headline()


def test_a_peer_that_is_not_to_be_trusted_marks_its_ratio_only(results):
    def change(one):
        as_new(one)
        next(row for row in one["results"] if row["schedule"] == "auto")["host_behind"]["torch"] = 3

    results(change)
    said = tables.gpu()
    assert "| 1.75 (1.70p, 0.85?) |" in said and said.count("?") == 2, "and in the legend"
    assert "in doubt" not in headline()


def test_a_busy_machine_counts_by_the_hosts_clock(results):
    """By the GPU's only where nobody looked whether the host was ahead."""
    row = {"seconds": {"a": [1.0] * 3}, "device_seconds": {"a": [1.0] * 3}, "host_behind": {"a": 0}}
    assert trust.doubts(row, ["a"], "busy") == []
    assert trust.doubts(row | {"host_behind": None}, ["a"], "busy") == ["busy"]
    assert trust.doubts(row | {"device_seconds": {}}, ["a"], "busy") == ["busy"]


def test_load_is_what_others_did():
    assert trust.machine_doubt({"load_average_before": 5.0, "cores_busy_elsewhere": 0.1}, 2) is None
    assert "others kept 1.0 of 2 cores busy" in trust.machine_doubt({"cores_busy_elsewhere": 1.0}, 2)
    assert "load average 0.7" in trust.machine_doubt({"load_average_before": 0.7, "cores_busy_elsewhere": None}, 2)
    assert trust.machine_doubt({"load_average_before": None}, 2) is None
    load = trust.Load()
    sum(range(3_000_000))  # work of one's own is no load
    found = load.as_record()
    assert found.keys() == {"load_average_before", "cores_busy_elsewhere"}


# --------------------------------------------------------------------------------------------------------- the digest
def test_comments_and_docstrings_are_no_kernels():
    source = '"""Words."""\n\nX = 1  # why\n\n\ndef f(x):\n    """More\n    words."""\n    y = "# none"\n    return x\n'
    assert record.bare(source) == 'X = 1\ndef f(x):\n    y = "# none"\n    return x'
    assert record.bare(source.replace("X = 1", "X = 2")) != record.bare(source)


def test_the_digest_is_about_what_runs_on_the_device(tmp_path, monkeypatch):
    package = tmp_path / "numbarnn"
    for part in record.TIMED["cuda"]:
        file = package / part / "one.py"
        file.parent.mkdir(parents=True)
        file.write_text("X = 1\n")
    monkeypatch.setattr(record.numbarnn, "__file__", str(package / "__init__.py"))

    def digests():
        record.kernels_digest.cache_clear()
        return record.kernels_digest("cpu"), record.kernels_digest("cuda")

    before = digests()
    (package / "kernels" / "one.py").write_text("# why\nX = 1\r\n", newline="")
    assert digests() == before, "a comment, and the ends of lines"
    (package / "kernels" / "one.py").write_text("X = 2\n")
    cpu, cuda = digests()
    assert cpu == before[0] and cuda != before[1]
    (package / "cells" / "one.py").rename(package / "cells" / "two.py")
    assert digests()[0] != cpu
    (package / "compile" / "one.py").unlink()
    with pytest.raises(FileNotFoundError):
        digests()
    record.kernels_digest.cache_clear()


def test_a_record_says_when_there_is_no_git():
    assert record.source_of("unknown") == record.source_of(None) == (None, None)
    assert record.source_of("abc-dirty") == ("abc", False) and record.source_of("abc") == ("abc", True)


def test_files_of_something_else_are_no_records():
    assert record.read(tables.RESULTS / "probe.json") is None
    assert record.read(OLD_GPU)["kernels"] is None


def test_rows_without_an_input_product_are_not_in_the_tables(results):
    results()
    before = tables.gpu()

    def twice(one):
        one["results"][:0] = [row | {"input_mode": "skip", "device_seconds": {}} for row in one["results"]]

    results(twice)
    assert tables.gpu() == before
