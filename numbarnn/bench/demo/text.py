"""Text for the character model: reading, splitting, encoding, and cutting into parallel streams.

Nothing here depends on the model: the output is NumPy arrays of character numbers (int64).
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

HELD_OUT_SHARE = 0.05  # the last part of the text, never trained on
DOCUMENTATION = "pydoc_data.topics"  # the name of the text that ships with Python
UNKNOWN = 0  # the number of every character that the training part does not contain
UNKNOWN_SIGN = "\N{REPLACEMENT CHARACTER}"  # how that number is shown
REPEAT_LENGTH = 64  # characters; passages at least this long count as repeated (a power of two)


def load_text(path: str | Path | None = None) -> tuple[str, str]:
    """The text to learn and its name: a UTF-8 file, or else the documentation that ships with Python."""
    if path is None:
        try:
            from pydoc_data.topics import topics
        except ImportError as error:
            raise ValueError(
                "text: this Python has no pydoc_data.topics, the default text; name a UTF-8 file with --text FILE"
            ) from error
        return "".join(topics[name] for name in sorted(topics)), DOCUMENTATION
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ValueError(f"text: expected a readable UTF-8 file, got {str(path)!r} ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"text: expected UTF-8, got {str(path)!r} with byte 0x{error.object[error.start]:02x} "
            f"at position {error.start} ({error.reason})"
        ) from error
    if not text:
        raise ValueError(f"text: expected a file with characters in it, got {str(path)!r}, which is empty")
    return text, str(path)


def split_text(text: str) -> tuple[str, str]:
    """Training part and held-out part (the end of the text)."""
    cut = len(text) - int(len(text) * HELD_OUT_SHARE)
    return text[:cut], text[cut:]


class Vocabulary:
    """The characters of the training part, sorted; number 0 is reserved for every other character."""

    def __init__(self, characters: str):
        if list(characters) != sorted(set(characters)):
            raise ValueError("vocabulary: expected each character once, in sorted order")
        self.characters = characters
        self._numbers = {character: number for number, character in enumerate(characters, 1)}

    @classmethod
    def of(cls, text: str) -> "Vocabulary":
        return cls("".join(sorted(set(text))))

    @property
    def size(self) -> int:
        return len(self.characters) + 1

    def encode(self, text: str) -> np.ndarray:
        """Character numbers, int64 (len(text),)."""
        return np.fromiter((self._numbers.get(character, UNKNOWN) for character in text), np.int64, len(text))

    def decode(self, numbers) -> str:
        return "".join(UNKNOWN_SIGN if n == UNKNOWN else self.characters[n - 1] for n in numbers)


@dataclass(frozen=True)
class Streams:
    """A text as B parallel streams: target (t, b) is the character that follows input (t, b) in stream b.

    Each stream continues in window w + 1 where it ended in window w, so that a recurrent state can be carried from one
    to the next. Characters at the end of the text that do not fill all streams, B - 1 at most, are left out.

    Attributes:
        inputs, targets: int64 (length, B), time-major.
    """

    inputs: np.ndarray
    targets: np.ndarray

    @classmethod
    def cut(cls, numbers: np.ndarray, batch: int) -> "Streams":
        length = (numbers.size - 1) // batch
        if length < 1:
            raise ValueError(f"numbers: expected at least {batch + 1} for {batch} streams, got {numbers.size}")
        inputs = numbers[: length * batch].reshape(batch, length)
        targets = numbers[1 : length * batch + 1].reshape(batch, length)
        return cls(np.ascontiguousarray(inputs.T), np.ascontiguousarray(targets.T))

    def to(self, xp) -> "Streams":
        """The same streams as arrays of another module (numpy or cupy)."""
        return Streams(xp.asarray(self.inputs), xp.asarray(self.targets))

    @property
    def length(self) -> int:
        return self.inputs.shape[0]

    def windows(self, seq: int) -> int:
        """How many full windows of `seq` steps there are."""
        return self.length // seq

    def window(self, index: int, seq: int) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets of one window, (seq, B) each; shorter where the streams end within it."""
        steps = slice(index * seq, (index + 1) * seq)
        return self.inputs[steps], self.targets[steps]


@dataclass(frozen=True)
class Corpus:
    """A text ready for training: vocabulary of the training part, streams of both parts, facts about it."""

    name: str
    digest: str  # SHA-256 of the text
    vocabulary: Vocabulary
    train: Streams
    held_out: Streams
    characters: int  # of the whole text
    held_out_unknown: int  # characters of the held-out part that the training part lacks
    held_out_repeated: float  # share of the held-out part that also stands in the training part, word for word

    @classmethod
    def prepare(cls, text: str, name: str, batch: int, seq: int, held_out_batch: int = 8) -> "Corpus":
        """Split, encode and cut; ValueError when the text does not fill one window of batch * seq."""
        train, held_out = split_text(text)
        needed = batch * seq + 1
        if len(train) < needed or len(held_out) < 2:
            least = max(-(-needed * 20 // 19), 40)
            raise ValueError(
                f"text: expected at least {least} characters for batch={batch} and seq={seq} "
                f"(batch * seq + 1 to train on, and the last {HELD_OUT_SHARE:.0%} held out), "
                f"got {len(text)} in {name!r}; use a longer text, or a smaller --batch or --seq"
            )
        vocabulary = Vocabulary.of(train)
        seen, unseen = vocabulary.encode(train), vocabulary.encode(held_out)
        streams = max(1, min(held_out_batch, (unseen.size - 1) // seq))
        return cls(
            name=name,
            digest=hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(),
            vocabulary=vocabulary,
            train=Streams.cut(seen, batch),
            held_out=Streams.cut(unseen, streams),
            characters=len(text),
            held_out_unknown=int((unseen == UNKNOWN).sum()),
            held_out_repeated=repeated_share(seen, unseen),
        )


def repeated_share(seen: np.ndarray, unseen: np.ndarray) -> float:
    """Share of the passages of REPEAT_LENGTH characters in `unseen` that occur in `seen` as well.

    Documentation repeats itself, and a held-out part with passages from the training part flatters a model:
    this figure says how far to trust its loss. Compares 64-bit hashes.
    """
    if min(seen.size, unseen.size) < REPEAT_LENGTH:
        return 0.0
    return float(np.isin(_passage_hashes(unseen), _passage_hashes(seen)).mean())


def _passage_hashes(numbers: np.ndarray) -> np.ndarray:
    """A polynomial hash, modulo 2^64, of every passage of REPEAT_LENGTH: by doubling its span."""
    hashes, factor, span = numbers.astype(np.uint64), np.uint64(0x9E3779B97F4A7C15), 1
    while span < REPEAT_LENGTH:
        hashes = hashes[:-span] * factor + hashes[span:]
        with np.errstate(over="ignore"):  # wrapping is meant
            factor = factor * factor
        span *= 2
    return hashes
