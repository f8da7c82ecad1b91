"""`numbarnn report`: one page of several results."""

import json
from xml.etree import ElementTree

import pytest

from numbarnn import cli
from numbarnn.bench import record
from numbarnn.bench import report as rows
from numbarnn.bench.record import RESULTS as RECORDED

CPU = sorted(RECORDED.glob("cpu-*.json"))[-1]
GPU = RECORDED / "h200-2026-11-20-lstm-float32.json"


@pytest.fixture
def page(tmp_path):
    def make(*files):
        path = tmp_path / "page.html"
        assert cli.main(["report", *map(str, files), "--html", str(path)]) == 0
        return path.read_text(encoding="utf-8")

    return make


def steady(name, factor=1.0):
    """A record in which nothing scatters, numbarnn's times multiplied by a factor."""
    data = json.loads(CPU.read_text(encoding="utf-8"))
    data["doubt"] = None
    for row in data["results"]:
        for contender, seconds in row["seconds"].items():
            middle = row["median_s"][contender] * (factor if contender == "numbarnn" else 1)
            row["seconds"][contender] = [middle] * len(seconds)
    name.write_text(json.dumps(data), encoding="utf-8")
    return name


def test_without_a_file_the_newest_of_each_device_are_on_one_page_which_refers_to_nothing_outside(page, capsys):
    text, said = page(), capsys.readouterr().out
    assert "src=" not in text and 'href="http' not in text and "url(http" not in text
    newest = {CPU.stem, "cpu-2026-11-23-avx512", *(path.stem for path in RECORDED.glob("h200-*"))}
    for path in RECORDED.glob("*.json"):
        assert (f"<h2>{path.stem}: " in text) == (f"\n{path.stem}: " in f"\n{said}") == (path.stem in newest)
    assert all(rows.key_of(row) in text for row in record.read(CPU)["results"])
    pictures = [part.partition("</svg>")[0] for part in text.split("<svg")[1:]]
    assert len(pictures) == len(newest)
    for picture in pictures:
        ElementTree.fromstring(f"<svg{picture}</svg>")


def test_the_result_stands_on_top_in_a_sentence_without_what_is_in_doubt(page, tmp_path):
    path = steady(tmp_path / "new.json", factor=0.01)
    assert "faster than PyTorch in 32 of 32 passes (median 0.01 of its time)" in page(path).partition("<h2>")[0]
    one = json.loads(path.read_text())
    one["results"][0]["seconds"]["numbarnn"][::2] = [1e-9] * 4
    path.write_text(json.dumps(one))
    assert "31 of 31 passes" in (said := page(path).partition("<h2>")[0]) and "1 more in doubt" in said


def test_times_and_ratios_are_the_records(page, tmp_path):
    found = record.read(CPU)
    row = found["results"][0]
    entry = rows.result_of("x", found).entries[rows.key_of(row)]
    assert entry.ratios == {"PyTorch": row["ratio"]["torch"], "onnxruntime": row["ratio"]["onnxruntime"]}
    assert max(entry.ratios.values()) == max(row["ratio"].values())
    gpu = rows.result_of("x", record.read(GPU)).entries
    assert all(set(one.ratios) <= {"cuDNN", "PyTorch"} for one in gpu.values())


@pytest.mark.parametrize("content", ["{", "[]", '{"results": []}', '{"kernels": 1}'])
def test_another_file_is_refused(content, tmp_path, cannot):
    path = tmp_path / "other.json"
    path.write_text(content)
    html = "--html", tmp_path / "page.html"
    assert f"FILE {path} is no result of numbarnn bench" in cannot("report", path, *html, code=2)
    assert not (tmp_path / "page.html").exists()
