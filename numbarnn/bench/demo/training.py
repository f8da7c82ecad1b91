"""Training the character model by truncated backpropagation through time, evaluating it, sampling from it."""

import math
import time
from dataclasses import dataclass

import numpy as np

from numbarnn.bench.cases.cases import PEERS_CELLS, layer_type
from numbarnn.bench.console import CannotRun
from numbarnn.bench.demo.charmodel import CharModel
from numbarnn.bench.demo.optim import Adam
from numbarnn.bench.demo.text import UNKNOWN, Corpus

EMBEDDING = 64  # size of a character's vector
CLIP = 1.0  # largest global norm of the gradients
HELD_OUT_WINDOW = 128  # steps per call when evaluating
FETCH_EVERY = {"cuda": 10}  # steps between readings of the loss, for which the host must wait; else 1
RECENT = 100  # steps that the training loss is averaged over for a report


class Diverged(CannotRun):
    """The loss is not finite any more."""


@dataclass(frozen=True)
class Config:
    """What defines a training run, besides the text; two runs with equal configurations give equal losses."""

    cell: str = "lstm"
    hidden: int = 256
    layers: int = 2
    batch: int = 32
    seq: int = 64
    dropout: float = 0.0
    lr: float = 4e-3
    seed: int = 0

    def __post_init__(self):
        if self.cell not in PEERS_CELLS:
            raise ValueError(f"cell: expected one of {', '.join(PEERS_CELLS)}, got {self.cell!r}")
        for name in ("hidden", "layers", "batch", "seq"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected a positive integer, got {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: expected a probability of at least 0 and below 1, got {self.dropout}")
        if self.dropout and self.layers == 1:
            raise ValueError(f"dropout: expected 0 with layers=1 (it is between layers), got {self.dropout}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr: expected a positive number, got {self.lr}")
        if self.seed < 0:
            raise ValueError(f"seed: expected an integer of at least 0, got {self.seed}")


def build_model(config, vocabulary_size, device="auto") -> CharModel:
    """A new model of a configuration."""
    options = {"dropout": config.dropout, "seed": config.seed, "device": device, "dtype": "float32"}
    layer = layer_type(config.cell)(EMBEDDING, config.hidden, config.layers, **options)
    return CharModel(vocabulary_size, layer, seed=config.seed)


class Trainer:
    """A model in training: everything that a checkpoint holds is an attribute of this object.

    Attributes:
        window: index of the next window of the training streams. state: the layer's at its start (None for zero).
        losses: bits per character of each step. held_out: (step, bits per character of the held-out text).
        seconds: time spent, over all runs that led here.
    """

    def __init__(self, config: Config, corpus: Corpus, device="auto"):
        self.config, self.corpus = config, corpus
        self.model = build_model(config, corpus.vocabulary.size, device)
        xp = self.model.xp
        self.optimizer = Adam(self.model.buffers, config.lr, xp=xp, clip=CLIP)
        self.train_streams, self.held_out_streams = corpus.train.to(xp), corpus.held_out.to(xp)
        self.step, self.window, self.state = 0, 0, None
        self.losses, self.held_out, self.seconds = [], [], 0.0
        self._pending = []  # losses (nats) still on the device
        self._fetch_every = FETCH_EVERY.get(self.model.layer.engine.name, 1)

    def train_step(self):
        """One window: gradients, update. The state goes on into the next; after the last it is reset."""
        seq = self.config.seq
        inputs, targets = self.train_streams.window(self.window, seq)
        loss, gradients, self.state = self.model.loss_and_gradients(inputs, targets, self.state)
        self.optimizer.step(gradients)
        self.step, self.window = self.step + 1, self.window + 1
        if self.window == self.train_streams.windows(seq):
            self.window, self.state = 0, None
        self._pending.append(loss)
        if len(self._pending) >= self._fetch_every:
            self.fetch_losses()

    def fetch_losses(self):
        """Brings `losses` up to date; Diverged when one is not finite."""
        fetched = [float(loss) / math.log(2) for loss in self._pending]
        self._pending.clear()
        self.losses += fetched
        self._check(fetched, "the loss")

    def _check(self, losses, what):
        """Raise Diverged when one of these is not finite."""
        if wrong := [loss for loss in losses if not math.isfinite(loss)]:
            cure = f"try a smaller --lr than {self.config.lr:g}"
            raise Diverged(f"{what} became {wrong[0]} by step {self.step}; {cure}")

    def recent_loss(self) -> float:
        """Training bits per character, averaged over the last steps; NaN before the first."""
        return float(np.mean(self.losses[-RECENT:])) if self.losses else math.nan

    def evaluate(self) -> float:
        """Bits per character of the held-out text, noted in `held_out`; Diverged when it is not finite."""
        if not self.held_out or self.held_out[-1][0] != self.step:
            loss = evaluate(self.model, self.held_out_streams)
            self._check([loss], "the loss of the held-out text")
            self.held_out.append((self.step, loss))
        return self.held_out[-1][1]

    def train(
        self, steps, *, deadline=math.inf, every=200, should_stop=lambda: False, on_step=lambda trainer: None,
        on_evaluated=lambda trainer: None,
    ):  # fmt: skip
        """Trains until step `steps`, the deadline (time.perf_counter()) or should_stop().

        Every `every` steps, and at the end, the held-out text is evaluated. on_step(trainer) and
        on_evaluated(trainer) are called after each step and each evaluation.
        """
        started = time.perf_counter() - self.seconds
        finished = self.step >= steps
        while not finished:
            self.train_step()
            now = time.perf_counter()
            self.seconds = now - started
            on_step(self)
            finished = self.step >= steps or now >= deadline or should_stop()
            if self.step % every == 0 and not finished:
                self._evaluate_and_tell(started, on_evaluated)
        self._evaluate_and_tell(started, on_evaluated)

    def _evaluate_and_tell(self, started, on_evaluated):
        self.fetch_losses()
        self.evaluate()
        self.seconds = time.perf_counter() - started
        on_evaluated(self)


def evaluate(model, streams, window=HELD_OUT_WINDOW) -> float:
    """Bits per character over whole streams, in inference, the state carried from window to window."""
    total, state = 0.0, None
    for index in range(-(-streams.length // window)):
        inputs, targets = streams.window(index, window)
        loss, state = model.loss(inputs, targets, state)
        total += float(loss) * inputs.size
    return total / streams.inputs.size / math.log(2)


def sample(model, vocabulary, length, *, temperature=1.0, seed=0, prompt="") -> str:
    """`length` characters that the model writes after the prompt, one step (T = 1) at a time.

    Args:
        temperature: divides the logits; 0 takes the most probable character. The unknown symbol is never drawn.

    Raises:
        Diverged: the model's numbers are not finite.
    """
    rng = np.random.default_rng([seed, 2])  # another stream than the parameters'
    numbers = vocabulary.encode(prompt or vocabulary.characters[0]).reshape(-1, 1)
    state, drawn = None, []
    for _ in range(length):
        logits, state = model.logits(model.xp.asarray(numbers), state)
        logits = np.array(model.layer.engine.to_host(logits[-1, 0]), np.float64)
        if not np.isfinite(logits).all():
            raise Diverged("training has diverged: there is no sample of a model of infinite numbers; a smaller --lr")
        logits[UNKNOWN] = -math.inf
        if temperature == 0:
            drawn.append(int(logits.argmax()))
        else:
            sums = np.exp((logits - logits.max()) / temperature).cumsum()
            drawn.append(int(np.searchsorted(sums, rng.random() * sums[-1], side="right")))
        numbers = np.array([[drawn[-1]]])
    return vocabulary.decode(drawn)
