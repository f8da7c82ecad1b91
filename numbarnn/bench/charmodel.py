"""A character model around a recurrent layer, and its text, for `numbarnn demo` and the notebooks.

Letters: T steps of B streams of text, V characters, E the embedding size (the layer's input size), H the layer's units.
Arrays are NumPy's or CuPy's. The layer's engine computes products, on the CPU with its threads.
"""

import importlib
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

HELD_OUT_SHARE, HELD_OUT_STREAMS = 0.05, 8  # the last part of a text, never trained on
DOCUMENTATION = "pydoc_data.topics"  # the name of the text that ships with Python
UNKNOWN, UNKNOWN_SIGN = 0, "\N{REPLACEMENT CHARACTER}"  # for every character that the training part lacks


def load_text(path=None):
    """Return a text and its name: of a UTF-8 file, by default of the documentation that ships with Python."""
    if path is None:
        topics = importlib.import_module(DOCUMENTATION).topics
        return "".join(topics[name] for name in sorted(topics)), DOCUMENTATION
    try:
        return Path(path).read_text(encoding="utf-8-sig"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"text: expected a readable UTF-8 file, got {str(path)!r} ({error})") from error


class Vocabulary:
    """The characters of a text, sorted; number 0 is reserved for every other character."""

    def __init__(self, text):
        self.characters = "".join(sorted(set(text)))
        self.size = len(self.characters) + 1
        self._numbers = {character: number for number, character in enumerate(self.characters, 1)}

    def encode(self, text):
        """Return character numbers, int64 (len(text),)."""
        return np.fromiter((self._numbers.get(character, UNKNOWN) for character in text), np.int64, len(text))

    def decode(self, numbers):
        return "".join(UNKNOWN_SIGN if n == UNKNOWN else self.characters[n - 1] for n in numbers)


class Streams(NamedTuple):
    """A text as B parallel streams, int64 (length, B): target (t, b) is the character that follows input (t, b).

    Each stream continues in window w + 1 where it ended in window w, so a state can be carried along."""

    inputs: np.ndarray
    targets: np.ndarray

    @classmethod
    def cut(cls, numbers, batch):
        """Cut character numbers into B streams of equal length."""
        length = (numbers.size - 1) // batch
        parts = (numbers[begin : begin + length * batch].reshape(batch, length) for begin in (0, 1))
        return cls(*(np.ascontiguousarray(part.T) for part in parts))

    def windows(self, seq):
        return len(self.inputs) // seq

    def window(self, index, seq):
        """Return inputs and targets of one window, (seq, B) each; shorter if the streams end within it."""
        return tuple(part[index * seq : (index + 1) * seq] for part in self)


class Corpus(NamedTuple):
    """A text for training: its vocabulary, and the streams of its training and held-out parts."""

    name: str
    characters: int
    vocabulary: Vocabulary
    train: Streams
    held_out: Streams

    @classmethod
    def prepare(cls, text, name, batch, seq):
        """Split a text into its parts and streams. Raise ValueError if it does not fill one window of batch * seq."""
        cut = len(text) - int(len(text) * HELD_OUT_SHARE)
        if cut < batch * seq + 1 or len(text) - cut < 2:
            least = max(-(-(batch * seq + 1) * 20 // 19), 40)
            raise ValueError(
                f"text: expected at least {least} characters for batch={batch} and seq={seq} (the last "
                f"{HELD_OUT_SHARE:.0%} are held out), got {len(text)} in {name!r}; use a longer text, or a smaller "
                "--batch or --seq"
            )
        vocabulary = Vocabulary(text[:cut])
        streams = max(1, min(HELD_OUT_STREAMS, (len(text) - cut - 1) // seq))
        parts = Streams.cut(vocabulary.encode(text[:cut]), batch), Streams.cut(vocabulary.encode(text[cut:]), streams)
        return cls(name, len(text), vocabulary, *parts)


class CharModel:
    """A model of the next character's probabilities.

        x = embedding[number]                                     (T, B, E)
        y = layer(x)                                              (T, B, H)
        logits = y Wᵀ + b                                         (T, B, V)
        loss = mean over characters of -log softmax(logits)[target]      in nats

    Args:
        vocabulary_size: V.
        layer: an LSTM, GRU or RNN of one direction, time first. The model has its dtype and device.
        seed: draws the embedding (as torch.nn.Embedding does) and the linear map (as torch.nn.Linear does).
    """

    def __init__(self, vocabulary_size, layer, seed=0):
        self.layer, self.xp, self._multiply = layer, layer.engine.array_module, layer.engine.multiply
        self.size, self.E, self.H = vocabulary_size, layer.input_size, layer.hidden_sizes[-1]
        dtype, bound = np.dtype(layer.dtype), self.H**-0.5
        rng = np.random.default_rng([seed, 1])  # another stream than the layer's
        first = [rng.standard_normal(self.size * self.E), rng.uniform(-bound, bound, self.size * (self.H + 1))]
        self.weights = self.xp.asarray(np.concatenate(first).astype(dtype))
        self.gradients = self.xp.zeros_like(self.weights)
        (self.embedding, self.W, self.b), self._d = map(self._views, (self.weights, self.gradients))
        self.buffers = [layer.weights, self.weights]  # all parameters, as an optimizer updates them

    def _views(self, flat):
        """Return views of a flat buffer: embedding (V, E), W (V, H) and b (V,)."""
        embedding, W, b = self.xp.split(flat, [self.size * self.E, self.size * (self.E + self.H)])
        return embedding.reshape(self.size, self.E), W.reshape(self.size, self.H), b

    def loss_and_gradients(self, inputs, targets, state=None):
        """Run one training window, integers (T, B), forward and backward.

        Return the loss (0-d array, on the device), the gradients (flat arrays in the order of `buffers`; the next call
        overwrites the second), and the layer's final state."""
        shape, inputs, targets = inputs.shape, inputs.reshape(-1), targets.reshape(-1)
        y, state, tape = self.layer.forward(self.embedding[inputs].reshape(*shape, self.E), state)
        y = y.reshape(-1, self.H)
        loss, dlogits = _cross_entropy(self._logits(y), targets, self.xp)
        d_embedding, d_W, d_b = self._d
        self._multiply(d_W, dlogits, y, transpose_a=True)
        self.xp.sum(dlogits, axis=0, out=d_b)
        dy = self.xp.empty_like(y)
        self._multiply(dy, dlogits, self.W)
        grads = self.layer.backward(tape, dy.reshape(*shape, self.H))
        # The embedding's gradient is a product with one-hot rows: adding rows in place would need atomics on a GPU.
        one_hot = dlogits  # reuse its memory
        one_hot.fill(0)
        one_hot[self.xp.arange(inputs.size), inputs] = 1
        self._multiply(d_embedding, one_hot, grads.x.reshape(-1, self.E), transpose_a=True)
        return loss, [grads.weights, self.gradients], state

    def loss(self, inputs, targets, state=None):
        """Return the loss of one window (0-d array) in inference, and the layer's final state."""
        logits, state = self.logits(inputs, state)
        return _cross_entropy(logits.reshape(-1, self.size), targets.reshape(-1), self.xp)[0], state

    def logits(self, inputs, state=None):
        """Return logits (T, B, V) of integers (T, B) in inference, and the layer's final state."""
        y, state = self.layer(self.embedding[inputs.reshape(-1)].reshape(*inputs.shape, self.E), state)
        return self._logits(y.reshape(-1, self.H)).reshape(*inputs.shape, self.size), state

    def _logits(self, y):
        logits = self.xp.empty((len(y), self.size), y.dtype)
        self._multiply(logits, y, self.W, transpose_b=True)
        logits += self.b
        return logits

    def state_dict(self):
        """Return NumPy copies of all parameters by PyTorch's names; names of the layer's begin with "rnn."."""
        arrays = {"embedding.weight": self.embedding, "linear.weight": self.W, "linear.bias": self.b}
        arrays = {name: np.array(self.layer.engine.to_host(view)) for name, view in arrays.items()}
        return arrays | {f"rnn.{name}": array for name, array in self.layer.state_dict().items()}


def _cross_entropy(logits, targets, xp):
    """Return the mean of -log softmax(logits)[target] (0-d array), and its gradient, which overwrites logits."""
    rows = xp.arange(len(logits))
    logits -= logits.max(axis=1, keepdims=True)
    of_target = logits[rows, targets]
    xp.exp(logits, out=logits)
    sums = logits.sum(axis=1, keepdims=True)
    loss = (xp.log(sums[:, 0]) - of_target).mean()
    logits /= sums * len(logits)
    logits[rows, targets] -= 1 / len(logits)
    return loss, logits


def evaluate(model, streams, window=128):
    """Return bits per character over whole streams; the state is carried from window to window."""
    total, state = 0.0, None
    for index in range(-(-len(streams.inputs) // window)):
        inputs, targets = (model.xp.asarray(part) for part in streams.window(index, window))
        loss, state = model.loss(inputs, targets, state)
        total += float(loss) * inputs.size
    return total / streams.inputs.size / math.log(2)
