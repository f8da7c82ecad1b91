"""`numbarnn demo`: the command end to end, its checkpoints, its chart."""

import argparse
import importlib.util
import io
import json
import math
import re
import signal
import sys

import numpy as np
import pytest

from numbarnn import cli, engines
from numbarnn.bench.demo import chart, checkpoint
from numbarnn.bench.demo import command as demo
from numbarnn.bench.demo.training import Trainer
from tiny_demo import TINY, random_text, tiny_corpus


def run(*options):
    return cli.main(["demo", *map(str, options)])


def demo_args(*options):
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    return parser.parse_args([str(option) for option in options])


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Options of a run that takes no time, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text(random_text(1500))
    return ["--text", "words.txt", "--hidden", 8, "--batch", 3, "--seq", 8, "--device", "cpu", "--sample", 10]


def test_run_end_to_end(small, tmp_path, capsys):
    assert run(*small, "--steps", 5, "--json", "out.json", "--save", "c.npz", "--seed", 4) == 0
    results = json.loads((tmp_path / "out.json").read_text())
    for key in ("bits_per_character", "held_out_bits_per_character"):
        assert 0 < results[key] < 8
    assert results["steps"] == 5 and results["seconds"] > 0 and results["interrupted"] is False
    expected = {"cell": "lstm", "hidden": 8, "layers": 2, "batch": 3, "seq": 8, "dropout": 0, "lr": 0.004, "seed": 4}
    assert results["configuration"] == expected
    assert (tmp_path / demo.DEFAULT_PLOT).read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr().out
    assert "held-out" in said and "bits per character in training, steps 1 to " in said and chart.EIGHTHS[-1] in said

    # the checkpoint knows the configuration and the text; options that say otherwise are refused
    assert run("--resume", "c.npz", "--steps", 8, "--plot", "none") == 0
    assert "resumed at step 5" in capsys.readouterr().out
    assert run("--resume", "c.npz", "--steps", 3, "--plot", "none") == 0
    assert "nothing to train: step 3 is done" in capsys.readouterr().out
    assert run("--resume", "c.npz", "--hidden", 9, "--plot", "none") == 2
    assert "resume: expected the configuration of 'c.npz', hidden=8; got hidden=9" in capsys.readouterr().err


def test_resume_refuses_other_text_and_other_files(small, tmp_path, capsys):
    assert run(*small, "--steps", 1, "--plot", "none", "--save", "c.npz") == 0
    text = (tmp_path / "words.txt").read_text()
    for name, content in (("vowel.txt", "é" + text), ("other.txt", text[1:] + text[0])):
        (tmp_path / name).write_text(content, encoding="utf-8")
    cases = [
        (["--text", "vowel.txt", "--resume", "c.npz"], "expected the vocabulary of 'c.npz'.*only one of them has 'é'"),
        (["--text", "other.txt", "--resume", "c.npz"], "expected the text that 'c.npz' was trained on, got another"),
        (["--text", "words.txt", "--resume", "words.txt"], "expected a checkpoint of `numbarnn demo`, got 'words.txt'"),
        (["--text", "words.txt", "--resume", "none.npz"], "expected a checkpoint of .*, got 'none.npz': No such file"),
    ]
    for options, message in cases:
        assert run(*options, "--plot", "none") == 2
        error = capsys.readouterr().err
        assert error.startswith("numbarnn demo: --resume: ")
        assert re.search(message, error), error


def test_checkpoints_that_are_cut_off_or_damaged(tmp_path):
    """Whatever has become of the bytes: a ValueError that names the file, or the checkpoint as it was."""
    path, trainer = tmp_path / "c.npz", Trainer(TINY, tiny_corpus(), "cpu")
    checkpoint.save(path, trainer)
    content, random = path.read_bytes(), np.random.default_rng(0)
    damaged = [content[:length] for length in np.linspace(0, len(content) - 1, 25, dtype=int)]
    for place in random.integers(0, len(content), 150):
        damaged.append(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
    refused = 0
    for number, bad in enumerate(damaged):
        path.write_bytes(bad)
        try:
            checkpoint.Checkpoint(path).restore(Trainer(TINY, trainer.corpus, "cpu"))
        except ValueError as error:
            assert re.match(rf"resume: .*'{path}'.*\w", str(error)) and "\n" not in str(error)
            refused += 1
        else:
            assert number >= 25  # a bit that nobody reads, such as a file's date
    assert refused > 100


@pytest.mark.parametrize(("change", "message"), [
    (lambda arrays, about: about.pop("step"), r"its 'about' lacks or has wrong: \['step \(int\)'\]"),
    (lambda arrays, about: about.update(seconds="long"), r"lacks or has wrong: \['seconds \(float\)'\]"),
    (lambda arrays, about: about.update(format="cake"), "its format is 'cake', not"),
    (lambda arrays, about: about["text"].pop("sha256"), "its 'text' lacks"),
    (lambda arrays, about: about["configuration"].update(hidden="12"), r"'hidden \(int\)'"),
    (lambda arrays, about: about["configuration"].update(width=3), r"unknown: \['width'\]"),
    (lambda arrays, about: about["configuration"].update(hidden=0), "hidden: expected a positive integer"),
    (lambda arrays, about: about.update(window=1), "no state/0; no state/1"),
    (lambda arrays, about: about.update(window=-5), "window -5 of"),
    (lambda arrays, about: about.update(step=7), r"losses of float64 \(0,\) in place of float64 \(7,\)"),
    (lambda arrays, about: arrays.pop("adam/first/0"), "damaged, as it has no adam/first/0"),
    (lambda arrays, about: arrays.update(extra=np.zeros(1)), "an unknown extra"),
    (lambda arrays, about: arrays.update({"model/linear.bias": np.zeros(1, "f4")}), r"linear.bias of float32 \(1,\)"),
    (lambda arrays, about: arrays.update({"adam/second/1": np.array(["x"])}), "adam/second/1 of <U1"),
])  # fmt: skip
def test_checkpoints_that_lack_something(tmp_path, change, message):
    path, trainer = tmp_path / "c.npz", Trainer(TINY, tiny_corpus(), "cpu")
    checkpoint.save(path, trainer)
    with np.load(path) as found:
        arrays = dict(found)
    about = json.loads(str(arrays["about"]))
    change(arrays, about)
    np.savez(path, **arrays | {"about": np.array(json.dumps(about))})
    before = [buffer.copy() for buffer in trainer.model.buffers]
    with pytest.raises(ValueError, match=f"^resume: .*{message}"):
        checkpoint.Checkpoint(path).restore(trainer)
    assert all(map(np.array_equal, before, trainer.model.buffers))


@pytest.mark.parametrize(("options", "message"), [
    (["--hidden", 10**12], r"demo: --hidden: expected a model that fits into the \d+ GiB .* 2 layers of 10{12} units"),
    (["--layers", 10**9], "hidden: expected a model that fits .* a smaller --hidden or --layers"),
    (["--dropout", 1], "dropout: expected a probability of at least 0 and below 1, got 1.0"),
    (["--dropout", 0.5, "--layers", 1], "dropout: expected 0 with layers=1"),
    (["--lr", "nan"], "numbarnn demo: --lr: expected a positive number, got nan"),
    (["--seed", -1], "seed: expected an integer of at least 0, got -1"),
    (["--minutes", 0], "minutes: expected a positive number, got 0.0"),
    (["--sample", -1], "numbarnn demo: --sample: expected a number of characters of at least 0, got -1"),
    (["--temperature", "nan"], "temperature: expected a number of at least 0, got nan"),
    (["--batch", 900], "numbarnn demo: --text: expected at least .* for batch=900 and seq=8"),
])  # fmt: skip
def test_bad_options(small, capsys, options, message):
    assert run(*small, "--plot", "none", *options) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.gpu
def test_run_on_a_gpu(small, tmp_path):
    problem = engines.why_not("cuda")
    if problem:
        pytest.skip(problem)
    options = [*small, "--device", "cuda", "--dropout", 0.2, "--plot", "none", "--save", "c.npz"]
    assert run(*options, "--steps", 60, "--json", "whole.json") == 0
    assert run(*options, "--steps", 25) == 0
    assert run(*options, "--resume", "c.npz", "--steps", 60, "--json", "resumed.json") == 0
    whole, resumed = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("whole", "resumed"))
    assert whole["bits_per_character"] < 5
    assert resumed["bits_per_character"] == whole["bits_per_character"]  # deterministic on a GPU too
    # other orders of summation than the CPU's; parameters disturbed by 1e-5 changed this figure by less than 1e-7
    assert run(*options, "--device", "cpu", "--steps", 60, "--json", "cpu.json") == 0
    cpu = json.loads((tmp_path / "cpu.json").read_text())
    assert whole["bits_per_character"] == pytest.approx(cpu["bits_per_character"], rel=1e-5)


def test_unusable_devices(small, capsys):
    assert run(*small, "--device", "tpu", "--plot", "none") == 2
    assert "device must be 'auto', 'cpu'" in capsys.readouterr().err
    if engines.why_not("cuda"):
        assert run(*small, "--device", "cuda", "--plot", "none") == 1
        assert "device 'cuda' cannot be used" in capsys.readouterr().err


def test_steps_and_minutes():
    assert demo.budget(demo_args()) == (demo.DEFAULT_STEPS, demo.DEFAULT_MINUTES)
    assert demo.budget(demo_args("--steps", 7)) == (7, math.inf)
    assert demo.budget(demo_args("--minutes", 1)) == (math.inf, 1)
    assert demo.budget(demo_args("--minutes", 1, "--steps", 7)) == (7, 1)


def test_ctrl_c_saves_samples_and_reports(small, tmp_path, monkeypatch, capsys):
    train_step = Trainer.train_step

    def step_and_press(self):
        train_step(self)
        if self.step == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Trainer, "train_step", step_and_press)
    handler = signal.getsignal(signal.SIGINT)
    assert run(*small, "--plot", "none", "--save", "c.npz", "--json", "out.json") == 0
    assert signal.getsignal(signal.SIGINT) is handler
    results = json.loads((tmp_path / "out.json").read_text())
    assert results["interrupted"] and results["steps"] == 3
    assert checkpoint.Checkpoint("c.npz").about["step"] == 3
    assert "stopped by Ctrl-C at step 3" in capsys.readouterr().out


@pytest.mark.parametrize("marks", (chart.EIGHTHS, chart.PLAIN))
def test_a_chart_of_numbers(marks):
    """Bars as high as the numbers, on the least of them; of many numbers the means."""
    lines = chart.chart([3.0, 1.0, 2.0], marks, height=4)
    assert [line[:7] for line in lines] == ["  3.00 ", " " * 7, " " * 7, "  1.00 "]
    bars = ["".join(line.ljust(10)[7 + k] for line in lines[::-1]).rstrip() for k in range(3)]
    assert bars[0] == marks[-1] * 4 and bars[1] == marks[1] and len(bars[1]) < len(bars[2]) < 4
    lines = chart.chart(np.repeat(np.arange(64.0), 5), marks)
    widths = [len(line.split()[-1]) for line in lines]
    assert max(map(len, lines)) == 71 and widths == sorted(widths)
    assert lines[0].startswith(" 63.00") and lines[-1].startswith("  0.00")
    assert len(chart.chart([2.0], marks)) == 8  # nothing to divide by


def test_a_chart_is_of_marks_that_can_be_printed():
    for encoding, marks in (("utf-8", chart.EIGHTHS), ("ascii", chart.PLAIN), ("cp1252", chart.PLAIN)):
        with io.TextIOWrapper(io.BytesIO(), encoding=encoding) as stream:
            assert chart.marks_of(stream) == marks


def test_missing_packages(small, tmp_path, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tqdm" else find(name))
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert run(*small, "--steps", 1) == 1
    assert re.search(r'matplotlib .*--plot none.* pip install .*\[cli\]"', capsys.readouterr().err)
    assert run(*small, "--steps", 1, "--plot", "none") == 0
    output = capsys.readouterr()
    assert "tqdm is not installed" in output.err and "step      1" in output.out
