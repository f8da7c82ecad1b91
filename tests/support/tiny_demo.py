"""A text and a model of `numbarnn demo` that train in no time."""

import numpy as np

from numbarnn.bench.demo.text import Corpus
from numbarnn.bench.demo.training import Config

TINY = Config(hidden=12, layers=2, batch=3, seq=8, dropout=0.25, lr=0.01, seed=5)
WORDS = "the cat sat on the mat; and then a dog ran by, over hill and dale. "


def random_text(length, seed=0):
    words = WORDS.split(" ")
    return " ".join(np.random.default_rng(seed).choice(words, length))[:length]


def tiny_corpus(length=700, config=TINY):
    return Corpus.prepare(random_text(length), "random words", config.batch, config.seq)
