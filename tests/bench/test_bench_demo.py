"""`numbarnn demo`: text, model, optimizer, training, sampling. The command: test_bench_demo_command.py."""

import numpy as np
import pytest

from numbarnn.bench.cases.cases import PEERS_CELLS, layer_type
from numbarnn.bench.demo import checkpoint
from numbarnn.bench.demo.charmodel import CharModel
from numbarnn.bench.demo.optim import Adam
from numbarnn.bench.demo.text import UNKNOWN, Corpus, Streams, Vocabulary, load_text, repeated_share, split_text
from numbarnn.bench.demo.training import Config, Diverged, Trainer, build_model, evaluate, sample
from reference_problem import central_differences
from tiny_demo import TINY, tiny_corpus


def tiny_layer(cell, dtype="float64"):
    return layer_type(cell)(3, 4, 2, dtype=dtype, device="cpu", seed=3)


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
    message = r"text: expected at least 40 characters for batch=3 and seq=8 .*got 20 in 'x'"
    with pytest.raises(ValueError, match=message):
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
        numeric = central_differences(lambda: float(model.loss(inputs, targets, state)[0]), weights, step)
        assert gradient == pytest.approx(numeric, rel=1e-6, abs=1e-9)


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


def test_divergence_of_the_last_step_is_reported():
    """Its update is in no loss of training; it is not saved, and nothing is written by such a model."""
    trainer, saved = Trainer(TINY, tiny_corpus(), "cpu"), []
    trainer.optimizer.step = lambda gradients: trainer.model.weights.fill(np.nan)
    with pytest.raises(Diverged, match=r"the loss of the held-out text became nan by step 1; try a smaller --lr"):
        trainer.train(1, on_evaluated=saved.append)
    assert not saved and not trainer.held_out
    with pytest.raises(Diverged, match="there is no sample of a model of infinite numbers"):
        sample(trainer.model, trainer.corpus.vocabulary, 3)


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
