"""`numbarnn demo`: text, model, optimizer, training, checkpoints, sampling, and the command end to end."""

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
from numbarnn.bench.cases.cases import PEERS_CELLS, layer_type
from numbarnn.bench.demo import chart, checkpoint
from numbarnn.bench.demo import command as demo
from numbarnn.bench.demo.charmodel import CharModel
from numbarnn.bench.demo.optim import Adam
from numbarnn.bench.demo.text import UNKNOWN, Corpus, Streams, Vocabulary, load_text, repeated_share, split_text
from numbarnn.bench.demo.training import Config, Diverged, Trainer, build_model, evaluate, sample

TINY = Config(hidden=12, layers=2, batch=3, seq=8, dropout=0.25, lr=0.01, seed=5)
WORDS = "the cat sat on the mat; and then a dog ran by, over hill and dale. "


def random_text(length, seed=0):
    words = WORDS.split(" ")
    return " ".join(np.random.default_rng(seed).choice(words, length))[:length]


def tiny_corpus(length=700, config=TINY):
    return Corpus.prepare(random_text(length), "random words", config.batch, config.seq)


def tiny_layer(cell, dtype="float64"):
    return layer_type(cell)(3, 4, 2, dtype=dtype, device="cpu", seed=3)


def run(*options):
    return cli.main(["demo", *map(str, options)])


def demo_args(*options):
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    return parser.parse_args([str(option) for option in options])


# ------------------------------------------------------------------------------------------------- text
def test_default_text_is_pythons_documentation():
    text, name = load_text()
    assert name == "pydoc_data.topics" and len(text) > 300_000
    assert "assert_stmt" in text[:300]  # topics in sorted order: "assert" comes first


def test_text_of_a_file(tmp_path):
    """Without a byte order mark; what cannot be read is named."""
    path = tmp_path / "text.txt"
    with pytest.raises(ValueError, match=r"^text: expected a readable UTF-8 file, got .*No such file"):
        load_text(path)
    for content, message in ((b"", "is empty"), (b"abc\xff", "0xff at position 3")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"^text: .*{message}"):
            load_text(path)
    path.write_bytes(b"\xef\xbb\xbfG\xc3\xb6del")
    assert load_text(path)[0] == "Gödel"


def test_vocabulary_maps_what_training_lacks_to_unknown():
    vocabulary = Vocabulary.of("banana 𝄞")
    assert vocabulary.size == 6  # and the unknown symbol
    assert vocabulary.encode("abn!\x00𝄞").tolist() == [2, 3, 4, UNKNOWN, UNKNOWN, 5]
    assert vocabulary.decode([2, 3, UNKNOWN]) == "ab\N{REPLACEMENT CHARACTER}"


def test_held_out_part_is_the_end_and_never_trained_on():
    text = "a" * 95 + "bcdef"
    train, held_out = split_text(text)
    assert (train, held_out) == ("a" * 95, "bcdef")
    corpus = Corpus.prepare("ab" * 500 + "z" * 40, "letters", batch=2, seq=8)
    assert corpus.vocabulary.characters == "ab"
    assert corpus.held_out_unknown == 40


def test_streams_continue_from_window_to_window():
    numbers = np.arange(1, 24)
    streams = Streams.cut(numbers, 3)  # 3 streams of 7; one character is left out
    assert streams.inputs.T.tolist() == [list(range(1, 8)), list(range(8, 15)), list(range(15, 22))]
    assert np.array_equal(streams.targets, streams.inputs + 1)
    assert streams.windows(3) == 2
    assert streams.window(1, 3)[0].tolist() == [[4, 11, 18], [5, 12, 19], [6, 13, 20]]
    assert streams.window(2, 3)[0].shape == (1, 3)


def test_corpus_too_short():
    with pytest.raises(
        ValueError, match=r"text: expected at least 40 characters for batch=3 and seq=8 .*got 20 in 'x'"
    ):
        Corpus.prepare("a" * 20, "x", 3, 8)
    least = Corpus.prepare("ab" * 30, "x", 3, 8)
    assert least.train.windows(8) >= 1


def test_repeated_share_counts_passages_seen_in_training():
    rng = np.random.default_rng(0)
    seen, new = rng.integers(0, 50, 500), rng.integers(0, 50, 163)
    assert repeated_share(seen, new) == 0
    assert repeated_share(seen, seen[100:300]) == 1
    assert repeated_share(seen, np.concatenate([seen[-64:], new])) == pytest.approx(1 / 164)


# -------------------------------------------------------------------------------------- model, optimizer
@pytest.mark.parametrize("cell", PEERS_CELLS)
def test_model_gradients_by_finite_differences(cell):
    model = CharModel(7, tiny_layer(cell), seed=2)
    rng = np.random.default_rng(0)
    inputs, targets = rng.integers(0, 7, (2, 5, 3))
    _, state = model.logits(rng.integers(0, 7, (4, 3)))  # a state that is not zero
    loss, gradients, _ = model.loss_and_gradients(inputs, targets, state)
    assert float(loss) == pytest.approx(float(model.loss(inputs, targets, state)[0]), rel=1e-12)
    step = 1e-5  # central differences in float64: error about step^2 + 1e-16 / step = 1e-10
    for weights, gradient in zip(model.buffers, [g.copy() for g in gradients], strict=True):
        for index in range(weights.size):
            value = weights[index]
            losses = []
            for sign in (1, -1):
                weights[index] = value + sign * step
                losses.append(float(model.loss(inputs, targets, state)[0]))
            weights[index] = value
            assert gradient[index] == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-6, abs=1e-9)


def test_model_stays_in_float32():
    model = CharModel(7, tiny_layer("lstm", "float32"))
    numbers = np.array([[1, 2], [3, 4]])
    loss, gradients, _ = model.loss_and_gradients(numbers, numbers)
    optimizer = Adam(model.buffers, 1e-3, xp=np, clip=1.0)
    optimizer.step(gradients)
    arrays = [loss, *gradients, *model.buffers, *optimizer.first, *optimizer.second, model.logits(numbers)[0]]
    assert {a.dtype for a in arrays} == {np.dtype(np.float32)}


def test_model_state_dict_round_trip():
    model, other = (CharModel(7, tiny_layer("gru"), seed=seed) for seed in (1, 2))
    other.layer.weights[...] = 0
    other.load_state_dict(model.state_dict())
    for mine, theirs in zip(model.buffers, other.buffers, strict=True):
        assert np.array_equal(mine, theirs)
    assert {"embedding.weight", "rnn.weight_ih_l0", "rnn.bias_hh_l1", "linear.bias"} <= set(model.state_dict())


def adam_by_hand(w, gradients, lr, clip, beta1=0.9, beta2=0.999, eps=1e-8):
    """Algorithm 1 of arXiv 1412.6980 as it stands there, with clipping before it."""
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(gradients, 1):
        g = g * min(1, clip / np.linalg.norm(g))
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        w = w - lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
    return w


def test_adam_with_clipping_over_all_buffers():
    rng = np.random.default_rng(1)
    w, gradients = rng.standard_normal(10), rng.standard_normal((6, 10)) * np.geomspace(0.1, 10, 6)[:, None]
    parts = [w[:4].copy(), w[4:].copy()]
    optimizer = Adam(parts, lr=0.05, xp=np, clip=2.0)
    for g in gradients:
        optimizer.step([g[:4].copy(), g[4:].copy()])
    # the clipping divides by norm + 1e-6, hence 1e-6
    np.testing.assert_allclose(np.concatenate(parts), adam_by_hand(w, gradients, 0.05, 2.0), rtol=1e-6)


# ---------------------------------------------------------------------------------------------- training
def test_training_learns():
    corpus = tiny_corpus()
    trainer = Trainer(Config(hidden=32, layers=1, batch=3, seq=8, lr=0.01), corpus, "cpu")
    trainer.train(150)
    assert trainer.losses[0] > 4 and trainer.recent_loss() < 3
    assert trainer.held_out[-1][0] == 150 and trainer.held_out[-1][1] < 3


def test_state_is_carried_and_reset_at_the_wrap():
    trainer = Trainer(TINY, tiny_corpus(), "cpu")
    windows = trainer.train_streams.windows(TINY.seq)
    states = []
    for _ in range(windows + 1):
        trainer.train_step()
        states.append(trainer.state)
    assert all(state is not None for state in states[: windows - 1])
    assert states[windows - 1] is None and states[windows] is not None and trainer.window == 1


def test_evaluation_carries_state_over_windows():
    corpus = tiny_corpus(2000)
    model = build_model(TINY, corpus.vocabulary.size, "cpu")
    whole = evaluate(model, corpus.held_out, window=corpus.held_out.length)
    # float32 products of other shapes: rounding only
    assert evaluate(model, corpus.held_out, window=5) == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("cell", PEERS_CELLS)
def test_resume_equals_uninterrupted(tmp_path, cell):
    config = Config(**{**vars(TINY), "cell": cell})
    corpus, path = tiny_corpus(), tmp_path / "c.npz"
    whole, first, second = (Trainer(config, corpus, "cpu") for _ in range(3))
    steps = whole.train_streams.windows(config.seq) + 4  # over the wrap
    whole.train(steps, every=7)
    first.train(6, every=7)
    checkpoint.save(path, first)
    checkpoint.Checkpoint(path).restore(second)
    second.train(steps, every=7)
    assert second.losses == whole.losses  # the same bits
    assert second.held_out[-1] == whole.held_out[-1]
    assert all(np.array_equal(a, b) for a, b in zip(second.model.buffers, whole.model.buffers, strict=True))


def test_divergence_is_reported():
    trainer = Trainer(TINY, tiny_corpus(), "cpu")
    trainer.model.weights[...] = np.nan
    with pytest.raises(Diverged, match=r"the loss became nan by step 1; try a smaller --lr than 0\.01"):
        trainer.train(3)


def test_training_stops_at_deadline_and_on_request():
    trainer = Trainer(TINY, tiny_corpus(), "cpu")
    trainer.train(100, deadline=0)
    assert trainer.step == 1
    trainer.train(100, should_stop=lambda: trainer.step == 5)
    assert trainer.step == 5


def test_sample_is_deterministic_by_seed():
    corpus = tiny_corpus()
    model = build_model(TINY, corpus.vocabulary.size, "cpu")
    model.parameters["linear.bias"][UNKNOWN] = 100  # it must not be drawn even so
    one, same, other = (sample(model, corpus.vocabulary, 40, seed=seed, prompt="the ") for seed in (1, 1, 2))
    assert one == same != other and len(one) == 40
    assert set(one) <= set(corpus.vocabulary.characters)
    greedy = [sample(model, corpus.vocabulary, 20, temperature=0, seed=seed) for seed in (1, 2)]
    assert greedy[0] == greedy[1]


# ----------------------------------------------------------------------------------------------- command
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
    assert run("--resume", "c.npz", "--hidden", 9, "--plot", "none") == 1
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
        (
            ["--text", "words.txt", "--resume", "none.npz"],
            "expected a checkpoint of `numbarnn demo`, got 'none.npz': No such file",
        ),
    ]
    for options, message in cases:
        assert run(*options, "--plot", "none") == 1
        error = capsys.readouterr().err
        assert error.startswith("numbarnn demo: resume: ")
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
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
        (
            lambda arrays, about: arrays.update({"model/linear.bias": np.zeros(1, "f4")}),
            r"linear.bias of float32 \(1,\)",
        ),
        (lambda arrays, about: arrays.update({"adam/second/1": np.array(["x"])}), "adam/second/1 of <U1"),
    ],
)
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--hidden", 10**12],
            r"hidden: expected a model that fits into the \d+ GiB .* 2 layers of 1000000000000 units",
        ),
        (["--layers", 10**9], "hidden: expected a model that fits .* a smaller --hidden or --layers"),
        (["--dropout", 1], "dropout: expected a probability of at least 0 and below 1, got 1.0"),
        (["--dropout", 0.5, "--layers", 1], "dropout: expected 0 with layers=1"),
        (["--lr", "nan"], "lr: expected a positive number, got nan"),
        (["--seed", -1], "seed: expected an integer of at least 0, got -1"),
        (["--minutes", 0], "minutes: expected a positive number, got 0.0"),
        (["--sample", -1], "sample: expected a number of characters of at least 0, got -1"),
        (["--temperature", "nan"], "temperature: expected a number of at least 0, got nan"),
        (["--batch", 900], "text: expected at least .* for batch=900 and seq=8"),
    ],
)
def test_bad_options(small, capsys, options, message):
    assert run(*small, "--plot", "none", *options) == 1
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
    assert run(*small, "--device", "tpu", "--plot", "none") == 1
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
    assert max(map(len, lines)) == 71 and [len(line.split()[-1]) for line in lines] == sorted(
        len(line.split()[-1]) for line in lines
    )
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
