"""Checkpoints of the character model: one .npz file that holds everything needed to go on exactly."""

import json
import zipfile
from dataclasses import asdict, fields

import numpy as np

from numbarnn.bench.demo.text import DOCUMENTATION
from numbarnn.bench.demo.training import Config, Trainer
from numbarnn.common import files

FORMAT = "numbarnn demo checkpoint 1"
FREE = ("lr",)  # parts of the configuration that may change on resuming
# What `_about` writes: name -> type.
ABOUT = {
    "format": str, "configuration": dict, "vocabulary": str, "text": dict, "step": int, "window": int,
    "adam_steps": int, "dropout_calls": int, "seconds": float,
}  # fmt: skip
TEXT = {"name": str, "sha256": str}
CONFIGURATION = {field.name: type(field.default) for field in fields(Config)}


def save(path, trainer: Trainer):
    """Writes the trainer. The file is replaced whole: an interruption leaves the former one."""
    trainer.fetch_losses()
    arrays = _model_arrays(trainer)
    state = trainer.state if isinstance(trainer.state, (tuple, list)) else [trainer.state]
    for index, part in enumerate(state if trainer.state is not None else ()):
        arrays[f"state/{index}"] = trainer.model.layer.engine.to_host(part)
    arrays["losses"] = np.array(trainer.losses, np.float64)
    arrays["held_out"] = np.array(trainer.held_out, np.float64).reshape(-1, 2)
    arrays["about"] = np.array(json.dumps(_about(trainer)))
    with files.replacing(path) as part, part.open("wb") as file:
        np.savez(file, **arrays)


def _model_arrays(trainer):
    """Name -> array on the host: parameters and Adam's moments, which every checkpoint of a configuration has."""
    to_host = trainer.model.layer.engine.to_host
    arrays = {f"model/{name}": array for name, array in trainer.model.state_dict().items()}
    return arrays | {name: to_host(moment) for name, moment in _moments(trainer)}


def _moments(trainer):
    """(name, array) of each of Adam's moments."""
    for kind in ("first", "second"):
        for index, moment in enumerate(getattr(trainer.optimizer, kind)):
            yield f"adam/{kind}/{index}", moment


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


def _check_fields(what, found, expected):
    """ValueError unless `found` is a dict with the names and types of `expected`; a whole number is a float too."""
    if not isinstance(found, dict):
        raise ValueError(f"its {what!r} is no object, but {found!r}")
    types = {name: (int, float) if kind is float else (kind,) for name, kind in expected.items()}
    wrong = [f"{name} ({expected[name].__name__})" for name in types if type(found.get(name)) not in types[name]]
    unknown = [name for name in found if name not in expected]
    if wrong or unknown:
        raise ValueError(f"its {what!r} lacks or has wrong: {wrong}; unknown: {unknown}")


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
            _check_fields("about", self.about, ABOUT)
            if self.about["format"] != FORMAT:
                raise ValueError(f"its format is {self.about['format']!r}, not {FORMAT!r}")
            _check_fields("text", self.about["text"], TEXT)
            _check_fields("configuration", self.about["configuration"], CONFIGURATION)
            self.config = Config(**self.about["configuration"])
        except Exception as error:  # of a damaged file NumPy, zipfile, tokenize and JSON each have their own
            said = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
            raise ValueError(
                f"resume: expected a checkpoint of `numbarnn demo`, got {self.path!r}: {said or type(error).__name__}"
            ) from error

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
            few = " ".join(map(repr, odd[:5])) + (f" and {len(odd) - 5} more" if len(odd) > 5 else "")
            raise ValueError(
                f"resume: expected the vocabulary of {self.path!r} ({len(saved)} characters), got "
                f"{len(came)} from {corpus.name!r}; only one of them has {few}"
            )
        if self.about["text"]["sha256"] != corpus.digest:
            raise ValueError(
                f"resume: expected the text that {self.path!r} was trained on, got another, {corpus.name!r} "
                "(Python's documentation differs between versions of Python; name the text with --text FILE)"
            )

    def restore(self, trainer: Trainer):
        """Puts a new trainer, of the same configuration and text, where the saved one was; or a ValueError, and nothing
        has changed."""
        self._check_arrays(trainer)
        asarray = trainer.model.xp.asarray
        model = {n.removeprefix("model/"): array for n, array in self.arrays.items() if n.startswith("model/")}
        trainer.model.load_state_dict(model)
        for name, moment in _moments(trainer):
            moment[...] = asarray(self.arrays[name])
        parts = [asarray(self.arrays[name]) for name in ("state/0", "state/1") if name in self.arrays]
        trainer.state = None if not parts else parts[0] if len(parts) == 1 else tuple(parts)
        trainer.losses = self.arrays["losses"].tolist()
        trainer.held_out = [(int(step), loss) for step, loss in self.arrays["held_out"]]
        trainer.step, trainer.window = self.about["step"], self.about["window"]
        trainer.model.layer.training_calls = self.about["dropout_calls"]
        trainer.optimizer.steps, trainer.seconds = self.about["adam_steps"], self.about["seconds"]

    def _check_arrays(self, trainer):
        """ValueError unless the arrays and counts are those of a trainer of this configuration and text."""
        about, config = self.about, trainer.config
        expected = {name: (array.shape, array.dtype) for name, array in _model_arrays(trainer).items()}
        state = (config.layers, config.batch, config.hidden), np.dtype(trainer.model.dtype)
        if about["window"]:
            expected |= dict.fromkeys(("state/0", "state/1") if config.cell == "lstm" else ("state/0",), state)
        expected["losses"] = (about["step"],), np.dtype(np.float64)
        expected["held_out"] = (len(self.arrays.get("held_out", ())), 2), np.dtype(np.float64)
        problems = [f"no {name}" for name in expected if name not in self.arrays]
        problems += [f"an unknown {name}" for name in self.arrays if name not in expected]
        for name, (shape, dtype) in expected.items():
            array = self.arrays.get(name)
            if array is not None and (array.shape, array.dtype) != (shape, dtype):
                problems.append(f"{name} of {array.dtype} {array.shape} in place of {dtype} {shape}")
        windows = trainer.train_streams.windows(config.seq)
        if not 0 <= about["window"] < windows:
            problems.append(f"window {about['window']} of {windows}")
        problems += [f"{n} {about[n]}" for n in ("step", "adam_steps", "dropout_calls", "seconds") if about[n] < 0]
        if problems:
            few = "; ".join(problems[:3]) + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")
            raise ValueError(f"resume: {self.path!r} is damaged, as it has {few}")
