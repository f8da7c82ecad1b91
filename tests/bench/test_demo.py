"""`numbarnn demo`: text, model, optimizer, training, sampling; the command end to end."""

import json
import signal

import numpy as np
import pytest

from numbarnn import cli
from numbarnn.bench import demo
from numbarnn.bench.cases import PEERS_CELLS, layer_type
from numbarnn.bench.charmodel import UNKNOWN, CharModel, Corpus, load_text
from reference_problem import central_differences

TINY = demo.DEFAULTS | {"hidden": 12, "batch": 3, "seq": 8, "dropout": 0.25, "lr": 0.01, "seed": 5}
WORDS = "the cat sat on the mat; and then a dog ran by, over hill and dale. ".split(" ")


def random_text(length):
    return " ".join(np.random.default_rng(0).choice(WORDS, length))[:length]


def tiny_trainer(length=700, **config):
    config = TINY | config
    return demo.Trainer(config, Corpus.prepare(random_text(length), "words", config["batch"], config["seq"]), "cpu")


def tiny_layer(cell, dtype="float64"):
    return layer_type(cell)(3, 4, 2, dtype=dtype, device="cpu", seed=3)


# ---------------------------------------------------------------------------------------------------------------- text
def test_text_of_python_and_of_a_file(tmp_path):
    """Without a byte order mark; what cannot be read is named."""
    text, name = load_text()
    assert name == "pydoc_data.topics" and len(text) > 300_000
    path = tmp_path / "text.txt"
    with pytest.raises(ValueError, match=r"^text: expected a readable UTF-8 file, got .*No such file"):
        load_text(path)
    path.write_bytes(b"abc\xff")
    with pytest.raises(ValueError, match=r"^text: .*0xff in position 3"):
        load_text(path)
    path.write_bytes(b"\xef\xbb\xbfG\xc3\xb6del")
    assert load_text(path)[0] == "Gödel"


# --------------------------------------------------------------------------------------------------- model
@pytest.mark.parametrize("cell", PEERS_CELLS)
def test_model_gradients_by_finite_differences(cell):
    model, rng = CharModel(7, tiny_layer(cell), seed=2), np.random.default_rng(0)
    inputs, targets = rng.integers(0, 7, (2, 5, 3))
    _, state = model.logits(rng.integers(0, 7, (4, 3)))  # a state that is not zero
    loss, gradients, _ = model.loss_and_gradients(inputs, targets, state)
    assert float(loss) == pytest.approx(float(model.loss(inputs, targets, state)[0]), rel=1e-12)
    for weights, gradient in zip(model.buffers, [g.copy() for g in gradients], strict=True):
        # central differences in float64: error about step^2 + 1e-16 / step = 1e-10
        numeric = central_differences(lambda: float(model.loss(inputs, targets, state)[0]), weights, 1e-5)
        assert gradient == pytest.approx(numeric, rel=1e-6, abs=1e-9)


# ------------------------------------------------------------------------------------------------------------ training
def test_training_learns_and_stops_at_its_deadline():
    trainer = tiny_trainer(hidden=32, layers=1, dropout=0.0)
    list(trainer.train(150))
    assert trainer.losses[0] > 4 and np.mean(trainer.losses[-50:]) < 3
    assert trainer.held_out[-1][0] == 150 and trainer.held_out[-1][1] < 3
    list(trainer.train(200, deadline=0))
    assert trainer.step == 151 == trainer.held_out[-1][0]


def test_divergence_is_reported():
    """Also that of the last step, whose update is in no loss of training; nothing is written of it."""
    trainer = tiny_trainer()
    trainer.model.weights[...] = np.nan
    with pytest.raises(demo.Diverged, match=r"the loss became nan by step 1; try a smaller --lr than 0\.01"):
        list(trainer.train(3))
    trainer = tiny_trainer()
    trainer.optimizer.step = lambda gradients: trainer.model.weights.fill(np.nan)
    with pytest.raises(demo.Diverged, match=r"the loss of the held-out text became nan by step 1"):
        list(trainer.train(1))
    assert not trainer.held_out
    with pytest.raises(demo.Diverged, match="there is no sample of a model of infinite numbers"):
        demo.sample(trainer.model, trainer.corpus.vocabulary, 3)


def test_sample_is_deterministic_by_seed():
    trainer = tiny_trainer()
    model, vocabulary = trainer.model, trainer.corpus.vocabulary
    model.b[UNKNOWN] = 100  # it must not be drawn even so
    one, same, other = (demo.sample(model, vocabulary, 40, seed=seed, prompt="the ") for seed in (1, 1, 2))
    assert one == same != other and len(one) == 40 and set(one) <= set(vocabulary.characters)
    greedy = [demo.sample(model, vocabulary, 20, temperature=0, seed=seed) for seed in (1, 2)]
    assert greedy[0] == greedy[1]


# --------------------------------------------------------------------------------------------------------- the command
def run(*options):
    return cli.main(["demo", *map(str, options)])


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Options of a run that takes no time, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text(random_text(1500))
    return ["--text", "words.txt", "--hidden", 8, "--batch", 3, "--seq", 8, "--device", "cpu", "--sample", 10]


def test_run_end_to_end(small, tmp_path, capsys):
    assert run(*small, "--steps", 5, "--json", "out.json", "--seed", 4) == 0
    results = json.loads((tmp_path / "out.json").read_text())
    assert all(0 < results[key] < 8 for key in ("bits_per_character", "held_out_bits_per_character"))
    assert results["steps"] == 5 and results["seconds"] > 0 and results["interrupted"] is False
    expected = {"cell": "lstm", "hidden": 8, "layers": 2, "batch": 3, "seq": 8, "dropout": 0, "lr": 0.004, "seed": 4}
    assert results["configuration"] == expected
    assert "held-out" in capsys.readouterr().out
    assert run(*small, "--layers", 1, "--dropout", 0.5) == 2
    assert "--dropout: expected 0 with layers=1" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value", "message"), [
    ("--dropout", "1", "a number of at least 0 and below 1, got 1.0"), ("--lr", "nan", "got nan"),
    ("--seed", "-1", "--seed: expected a number of at least 0 "), ("--minutes", "0", "--minutes: expected a number"),
    ("--sample", "-1", "got -1"), ("--temperature", "nan", "got nan"),
])  # fmt: skip
def test_bad_options(option, value, message, cannot):
    assert message in cannot("demo", option, value, code=2)


def test_ctrl_c_samples_and_reports(small, tmp_path, monkeypatch, capsys):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else ignored in the background
    train_step = demo.Trainer.train_step

    def step_and_press(self):
        train_step(self)
        if self.step == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(demo.Trainer, "train_step", step_and_press)
    assert run(*small, "--json", "out.json") == 0
    results = json.loads((tmp_path / "out.json").read_text())
    assert results["interrupted"] and results["steps"] == 3
    assert "stopped by Ctrl-C at step 3" in capsys.readouterr().out
