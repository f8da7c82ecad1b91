"""Checkpoints of the character model: one .npz file that holds everything needed to go on exactly."""

import json
import os
import zipfile
from dataclasses import asdict
from pathlib import Path

import numpy as np

from numbarnn.bench.text import DOCUMENTATION
from numbarnn.bench.training import Config, Trainer

FORMAT = "numbarnn demo checkpoint 1"
FREE = ("lr",)  # parts of the configuration that may change on resuming


def save(path, trainer: Trainer):
    """Writes the trainer. The file is replaced whole: an interruption leaves the former one."""
    trainer.fetch_losses()
    to_host = trainer.model.layer.engine.to_host
    arrays = {f"model/{name}": array for name, array in trainer.model.state_dict().items()}
    for kind in ("first", "second"):
        for index, moment in enumerate(getattr(trainer.optimizer, kind)):
            arrays[f"adam/{kind}/{index}"] = to_host(moment)
    for index, part in enumerate(_state_parts(trainer.state)):
        arrays[f"state/{index}"] = to_host(part)
    arrays["losses"] = np.array(trainer.losses, np.float64)
    arrays["held_out"] = np.array(trainer.held_out, np.float64).reshape(-1, 2)
    arrays["about"] = np.array(json.dumps(_about(trainer)))
    path = Path(path)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with part.open("wb") as file:
        np.savez(file, **arrays)
    part.replace(path)


def _about(trainer):
    return {
        "format": FORMAT,
        "configuration": asdict(trainer.config),
        "vocabulary": trainer.corpus.vocabulary.characters,
        "text": {"name": trainer.corpus.name, "sha256": trainer.corpus.digest},
        "step": trainer.step,
        "window": trainer.window,
        "adam_steps": trainer.optimizer.steps,
        "dropout_calls": trainer.model.layer.training_calls,  # with the seed, the key of the next masks
        "seconds": trainer.seconds,
    }


class Checkpoint:
    """A checkpoint file, read and checked. about: see `_about`; arrays: dict of NumPy arrays."""

    def __init__(self, path):
        self.path = str(path)
        try:
            with open(path, "rb") as file:
                if not zipfile.is_zipfile(file):
                    raise ValueError("it is no .npz file")
                file.seek(0)
                self.arrays = dict(np.load(file, allow_pickle=False))
            self.about = json.loads(str(self.arrays.pop("about")))
        except OSError as error:
            raise ValueError(f"resume: expected a checkpoint, got {self.path!r} ({error.strerror})") from error
        except (ValueError, KeyError, AttributeError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"resume: expected a checkpoint of `numbarnn demo`, got {self.path!r}: {error}") from error
        if self.about.get("format") != FORMAT:
            raise ValueError(f"resume: expected {FORMAT!r}, got {self.about.get('format')!r} in {self.path!r}")
        self.config = Config(**self.about["configuration"])

    @property
    def text_path(self):
        """File of the text that the model was trained on; None for Python's documentation."""
        name = self.about["text"]["name"]
        return None if name == DOCUMENTATION else name

    def check_config(self, config: Config):
        """ValueError when the configuration differs in more than what may change."""
        saved, wanted = asdict(self.config), asdict(config)
        different = [name for name in saved if saved[name] != wanted[name] and name not in FREE]
        if different:
            expected = ", ".join(f"{name}={saved[name]}" for name in different)
            came = ", ".join(f"{name}={wanted[name]}" for name in different)
            raise ValueError(f"resume: expected the configuration of {self.path!r}, {expected}; got {came}")

    def check_corpus(self, corpus):
        """ValueError when the vocabulary or the text is not the one of the checkpoint."""
        saved, came = self.about["vocabulary"], corpus.vocabulary.characters
        if saved != came:
            odd = sorted(set(saved) ^ set(came))
            raise ValueError(
                f"resume: expected the vocabulary of {self.path!r} ({len(saved)} characters), got "
                f"{len(came)} from {corpus.name!r}; only one of them has {_few(odd)}"
            )
        if self.about["text"]["sha256"] != corpus.digest:
            raise ValueError(
                f"resume: expected the text that {self.path!r} was trained on, got another, {corpus.name!r} "
                "(Python's documentation differs between versions of Python; name the text with --text FILE)"
            )

    def restore(self, trainer: Trainer):
        """Puts a new trainer, of the same configuration and text, where the saved one was."""
        asarray = trainer.model.xp.asarray
        names = [name for name in self.arrays if name.startswith("model/")]
        trainer.model.load_state_dict({name.removeprefix("model/"): self.arrays[name] for name in names})
        for kind in ("first", "second"):
            for index, moment in enumerate(getattr(trainer.optimizer, kind)):
                moment[...] = asarray(self.arrays[f"adam/{kind}/{index}"])
        parts = [asarray(self.arrays[name]) for name in ("state/0", "state/1") if name in self.arrays]
        trainer.state = None if not parts else parts[0] if len(parts) == 1 else tuple(parts)
        trainer.losses = self.arrays["losses"].tolist()
        trainer.held_out = [(int(step), loss) for step, loss in self.arrays["held_out"]]
        trainer.step, trainer.window = self.about["step"], self.about["window"]
        trainer.model.layer.training_calls = self.about["dropout_calls"]
        trainer.optimizer.steps, trainer.seconds = self.about["adam_steps"], self.about["seconds"]


def _state_parts(state):
    """A layer's state (None, h, or (h, c)) as a list of arrays."""
    if state is None:
        return []
    return list(state) if isinstance(state, (tuple, list)) else [state]


def _few(characters, limit=5):
    shown = " ".join(repr(c) for c in characters[:limit])
    return shown if len(characters) <= limit else f"{shown} and {len(characters) - limit} more"
