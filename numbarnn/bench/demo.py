"""`numbarnn demo`: train a character model on real text by truncated backpropagation through time, and let it write."""

import argparse
import json
import math
import signal
import threading
import time

import numpy as np

from numbarnn import engines
from numbarnn.bench import console
from numbarnn.bench.cases import PEERS_CELLS, layer_type
from numbarnn.bench.charmodel import DOCUMENTATION, UNKNOWN, Adam, CharModel, Corpus, evaluate, load_text
from numbarnn.common import files

DEFAULT_STEPS, DEFAULT_MINUTES = 1200, 2.5  # without --steps and --minutes: so many steps, but no longer than this
DEFAULT_PLOT, CURVE = "numbarnn_demo.png", "the loss curve (--plot none does without)"
EMBEDDING, CLIP = 64, 1.0  # size of a character's vector; largest global norm of the gradients
RECENT, EVERY = 100, 200  # steps of which the mean loss is told; steps between evaluations and checkpoints
FORMAT = "numbarnn demo checkpoint 1"
# What defines a training run, besides the text: two runs with equal ones give equal losses.
DEFAULTS = {"cell": "lstm", "layers": 2, "hidden": 256, "dropout": 0.0, "batch": 32, "seq": 64, "lr": 4e-3, "seed": 0}


def number(least, below=math.inf, kind=float, what="a number"):
    """An argparse type: a number of at least `least`, and below another."""

    def parse(text):
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value < below:
            upper = f" and below {below:g}" if below < math.inf else ""
            raise argparse.ArgumentTypeError(f"expected {what} of at least {least:g}{upper}, got {text!r}")
        return value

    return parse


def add_arguments(parser):
    """Options of `numbarnn demo`. Those of the model are None when not given: a checkpoint may say them."""
    add, count, whole = parser.add_argument, console.positive_int, number(0, kind=int)
    for name, purpose, kind in (
        ("layers", "recurrent layers", count), ("hidden", "units in each", count), ("batch", "streams of text", count),
        ("seq", "characters in a window", count), ("seed", "of all that is random", whole),
        ("dropout", "probability, between layers", number(0, 1, what="a probability")),
        ("lr", "Adam's learning rate; may change on resuming", number(1e-12)),
    ):  # fmt: skip
        about = f"{purpose} (default: {DEFAULTS[name]}, or as in the checkpoint)"
        add(f"--{name}", type=kind, metavar="N", help=about)
    add("--cell", choices=PEERS_CELLS, help="kind of recurrent layer (default: lstm, or as in the checkpoint)")
    add("--text", metavar="FILE", help="UTF-8 text to learn (default: Python's documentation)")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:N or sim (default: auto)")
    default = f"{DEFAULT_STEPS}, or {DEFAULT_MINUTES} minutes if that is sooner"
    add("--steps", type=count, metavar="N", help=f"train until this step (default: {default})")
    add("--minutes", type=number(1e-9), help="train no longer than this (default with --steps: no limit)")
    add("--sample", type=whole, default=600, metavar="N", help="characters to write (default: 600)")
    about = "of the sample, 0 takes the likeliest characters (default: 0.7)"
    add("--temperature", type=number(0), default=0.7, help=about)
    add("--prompt", default="The ", help='text that the sample continues (default: "The ")')
    console.add_json_argument(parser, "the results")
    plot = lambda text: None if text == "none" else console.json_path(text)  # noqa: E731
    about = f"loss curve to write, or none (default: {DEFAULT_PLOT})"
    add("--plot", type=plot, default=DEFAULT_PLOT, metavar="FILE.png", help=about)
    add("--save", type=console.json_path, metavar="FILE", help="keep a checkpoint in FILE (.npz)")
    add("--resume", metavar="FILE", help="go on from a checkpoint")


def run(args):
    """Train, then write a sample, results and the loss curve; returns 0."""
    begin, steps, minutes = time.perf_counter(), args.steps or math.inf, args.minutes or math.inf
    if args.plot is not None:
        console.figure(CURVE)  # or an error, before the work
    if args.steps is None and args.minutes is None:
        steps, minutes = DEFAULT_STEPS, DEFAULT_MINUTES
    try:
        engine = engines.get(args.device)
        with engine.activate():
            trainer = prepare(args, engine)
    except ValueError as error:
        raise console.WrongArguments(f"--{error}") from error  # all begin with what they are about
    except (ImportError, RuntimeError) as error:
        raise console.CannotRun(str(error)) from error
    config, corpus, layer = trainer.config, trainer.corpus, trainer.model.layer
    console.say(
        f"text    {corpus.name}: {corpus.characters:,} characters, {corpus.vocabulary.size - 1} different\n"
        f"model   {config['layers']} x {config['cell']} of {config['hidden']} units, {trainer.parameters:,} parameters "
        f"on {layer.engine.name} ({layer.engine.device})\nstep    {config['batch']} streams x {config['seq']} letters"
        + (f"\nresumed at step {trainer.step}" if trainer.step else "")
        + (f"\nnothing to train: step {steps} is done; a larger --steps goes on" if trainer.step >= steps else "")
    )
    stop, former, not_saved = threading.Event(), signal.getsignal(signal.SIGINT), None
    # Ctrl-C never cuts a step in two; a second one stops at once.
    signal.signal(signal.SIGINT, lambda *_: (stop.set(), signal.signal(signal.SIGINT, former)))
    try:
        with engine.activate(), console.Progress() as progress:
            progress.start("training", None if steps == math.inf else max(steps, trainer.step))
            progress.update("training", trainer.step)
            for trained in trainer.train(steps, begin + 60 * minutes, stop=stop.is_set):
                progress.update("training", trained)
                if trained:
                    continue
                console.say(f"step {trainer.step:6d}   {trainer.seconds:6.1f} s   {trainer.told()}")
                not_saved = args.save and save_or_say(args.save, trainer)
    finally:
        signal.signal(signal.SIGINT, former)
    with engine.activate():
        finish(args, trainer, stop.is_set())
    if not_saved:
        raise not_saved
    if args.save is not None:
        console.say(f"checkpoint: {args.save}")
    return 0


def prepare(args, engine):
    """Return the Trainer, new or from a checkpoint; ValueError where options, text or checkpoint do not fit."""
    given = {name: value for name in DEFAULTS if (value := getattr(args, name)) is not None}
    about, arrays, text, saved = None, None, args.text, DEFAULTS
    if args.resume is not None:
        about, arrays = read(args.resume)
        saved = about["configuration"]
        if wrong := [name for name in given if name != "lr" and given[name] != saved[name]]:
            expected, came = (", ".join(f"{name}={one[name]}" for name in wrong) for one in (saved, given))
            raise ValueError(f"resume: expected the configuration of {args.resume!r}, {expected}; got {came}")
        text = text or (None if about["name"] == DOCUMENTATION else about["name"])
    config = saved | given
    if config["dropout"] and config["layers"] == 1:
        raise ValueError(f"dropout: expected 0 with layers=1 (it is between layers), got {config['dropout']}")
    corpus = Corpus.prepare(*load_text(text), config["batch"], config["seq"])
    if arrays is not None and about["digest"] != corpus.digest:
        raise ValueError(
            f"resume: expected the text that {args.resume!r} was trained on, got another, {corpus.name!r} (Python's "
            "documentation differs between versions of Python; name the text with --text FILE)"
        )
    trainer = Trainer(config, corpus, engine)
    return restore(trainer, about, arrays, args.resume) if arrays else trainer


class Diverged(console.CannotRun):
    """The loss is not finite any more."""


class Trainer:
    """A model in training: everything that a checkpoint holds is an attribute of this object.

    Attributes:
        window: index of the next window of the training streams. state: the layer's at its start (None for zero).
        losses: bits per character of each step. held_out: (step, bits per character of the held-out text).
        seconds: time spent, over all runs that led here.
    """

    def __init__(self, config, corpus, device="auto"):
        self.config, self.corpus = config, corpus
        options = {"dropout": config["dropout"], "seed": config["seed"], "device": device, "dtype": "float32"}
        layer = layer_type(config["cell"])(EMBEDDING, config["hidden"], config["layers"], **options)
        self.model = CharModel(corpus.vocabulary.size, layer, seed=config["seed"])
        self.parameters = sum(buffer.size for buffer in self.model.buffers)
        self.optimizer = Adam(self.model.buffers, config["lr"], xp=self.model.xp, clip=CLIP)
        self.step, self.window, self.state, self.losses, self.held_out, self.seconds = 0, 0, None, [], [], 0.0

    def train_step(self):
        """Take one window: gradients, update. The state goes on into the next; after the last it is reset."""
        seq, streams = self.config["seq"], self.corpus.train
        inputs, targets = map(self.model.xp.asarray, streams.window(self.window, seq))
        loss, gradients, self.state = self.model.loss_and_gradients(inputs, targets, self.state)
        self.optimizer.step(gradients)
        self.step, self.window = self.step + 1, self.window + 1
        if self.window == streams.windows(seq):
            self.window, self.state = 0, None
        self.losses.append(self._finite(float(loss) / math.log(2), "the loss"))

    def _finite(self, loss, what):
        if not math.isfinite(loss):
            cure = f"try a smaller --lr than {self.config['lr']:g}"
            raise Diverged(f"{what} became {loss} by step {self.step}; {cure}")
        return loss

    def told(self):
        """Return the latest losses in words: of training (the mean of some steps), and of the held-out text."""
        recent = float(np.mean(self.losses[-RECENT:])) if self.losses else math.nan
        return f"bits per character: training {recent:.3f}, held-out {self.held_out[-1][1]:.3f}"

    def train(self, steps, deadline=math.inf, every=EVERY, stop=lambda: False):
        """Train until step `steps`, the deadline (time.perf_counter()), or until stop() says so.

        Yields 1 after each step and 0 after each evaluation of the held-out text, every `every` steps and at the end.
        """
        begin, finished = time.perf_counter() - self.seconds, False
        while not finished:
            if self.step < steps:
                self.train_step()
                yield 1
            finished = self.step >= steps or time.perf_counter() >= deadline or stop()
            if finished or self.step % every == 0:
                if not self.held_out or self.held_out[-1][0] != self.step:
                    loss = self._finite(evaluate(self.model, self.corpus.held_out), "the loss of the held-out text")
                    self.held_out.append((self.step, loss))
                self.seconds = time.perf_counter() - begin
                yield 0


def sample(model, vocabulary, length, *, temperature=1.0, seed=0, prompt=""):
    """Return `length` characters that the model writes after the prompt, one step (T = 1) at a time.

    temperature divides the logits; 0 takes the most probable character. The unknown symbol is never drawn.
    """
    rng = np.random.default_rng([seed, 2])  # another stream than the parameters'
    numbers, state, drawn = vocabulary.encode(prompt or vocabulary.characters[0]).reshape(-1, 1), None, []
    for _ in range(length):
        logits, state = model.logits(model.xp.asarray(numbers), state)
        logits = np.array(model.layer.engine.to_host(logits[-1, 0]), np.float64)
        if not np.isfinite(logits).all():
            raise Diverged("training has diverged: there is no sample of a model of infinite numbers; a smaller --lr")
        logits[UNKNOWN] = -math.inf
        sums = np.exp((logits - logits.max()) / (temperature or 1)).cumsum()
        likely = np.searchsorted(sums, rng.random() * sums[-1], side="right") if temperature else logits.argmax()
        drawn.append(int(likely))
        numbers = np.array([[drawn[-1]]])
    return vocabulary.decode(drawn)


# --------------------------------------------------------------------------------------------------------- checkpoints
NUMBERS = ("step", "window", "seconds", "losses", "held_out")  # attributes of a Trainer that are kept as JSON


def arrays_of(trainer):
    """Return name -> array on the device: both buffers of parameters, and Adam's moments of each."""
    kinds = {"weights": trainer.model.buffers, "first": trainer.optimizer.first, "second": trainer.optimizer.second}
    return {f"{kind}/{number}": array for kind, arrays in kinds.items() for number, array in enumerate(arrays)}


def save(path, trainer):
    """Write everything needed to go on exactly. The file is replaced whole: an interruption leaves the former one."""
    state = trainer.state if isinstance(trainer.state, tuple) else () if trainer.state is None else (trainer.state,)
    found = arrays_of(trainer) | {f"state/{n}": part for n, part in enumerate(state)}
    arrays = {name: trainer.model.layer.engine.to_host(array) for name, array in found.items()}
    about = {"format": FORMAT, "configuration": trainer.config, "name": trainer.corpus.name}
    about |= {"digest": trainer.corpus.digest, "adam_steps": trainer.optimizer.steps}
    about |= {"dropout_calls": trainer.model.layer.training_calls}  # with the seed, the key of the next masks
    about |= {name: getattr(trainer, name) for name in NUMBERS}
    with files.replacing(path) as part, part.open("wb") as file:
        np.savez(file, **arrays, about=np.array(json.dumps(about)))


def save_or_say(path, trainer):
    """Save; return the OSError where that fails: a full disk, which may have room later, does not end the training."""
    try:
        save(path, trainer)
    except OSError as error:
        console.say(f"no checkpoint: {error.filename}: {error.strerror}")
        return error


def read(path):
    """Return (about, arrays) of a checkpoint; ValueError where the file is none, or damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        about = json.loads(str(arrays.pop("about")))
        if about["format"] != FORMAT:
            raise ValueError(f"its format is {about['format']!r}, not {FORMAT!r}")
    except Exception as error:  # of a damaged file NumPy, zipfile and JSON each have their own
        said = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise ValueError(f"resume: expected a checkpoint of `numbarnn demo`, got {path!r}: {said}") from error
    return about, arrays


def restore(trainer, about, arrays, path):
    """Return a trainer of the same configuration and text as the saved one; ValueError if that is damaged."""
    try:
        for name, array in arrays_of(trainer).items():
            array[...] = trainer.model.xp.asarray(arrays[name])
        parts = [trainer.model.xp.asarray(arrays[name]) for name in ("state/0", "state/1") if name in arrays]
        trainer.state = None if not parts else parts[0] if len(parts) == 1 else tuple(parts)
        for name in NUMBERS:
            setattr(trainer, name, about[name])
        trainer.optimizer.steps, trainer.model.layer.training_calls = about["adam_steps"], about["dropout_calls"]
    except (KeyError, ValueError) as error:
        raise ValueError(f"resume: {path!r} is damaged: {type(error).__name__}: {error}") from error
    return trainer


# -------------------------------------------------------------------------------------------------------------- results
def finish(args, trainer, interrupted):
    """Let the model write; tell the results, and write them and their picture to files."""
    if interrupted:
        console.say(f"stopped by Ctrl-C at step {trainer.step}")
    corpus, config, seconds, steps = trainer.corpus, trainer.config, trainer.seconds, trainer.step
    if args.sample:
        options = {"temperature": args.temperature, "seed": config["seed"], "prompt": args.prompt}
        console.say(f"\n{args.prompt}{sample(trainer.model, corpus.vocabulary, args.sample, **options)}\n")
    console.say(f"{steps} steps in {seconds:.0f} s; {trainer.told()}")
    if args.json is not None:
        console.write_json(args.json, {
            "bits_per_character": np.mean(trainer.losses[-RECENT:] or [math.nan]), "steps": steps, "seconds": seconds,
            "held_out_bits_per_character": trainer.held_out[-1][1], "held_out_curve": trainer.held_out,
            "characters_per_second": steps * config["batch"] * config["seq"] / seconds, "interrupted": interrupted,
            "configuration": config, "device": trainer.model.layer.engine.device,
            "parameters": trainer.parameters,
            "text": {"name": corpus.name, "sha256": corpus.digest, "characters": corpus.characters},
        })  # fmt: skip
    if args.plot is not None:
        picture = console.figure(CURVE, figsize=(8, 4.5))
        axes = picture.subplots()
        axes.plot(range(1, len(trainer.losses) + 1), trainer.losses, alpha=0.5, linewidth=0.8, label="training")
        axes.plot(*zip(*trainer.held_out, strict=True), "o-", color="tab:orange", label="held-out")
        title = f"{config['layers']} × {config['cell']}, {config['hidden']} units, {corpus.name}"
        label = f"step of {config['batch']} × {config['seq']} characters"
        axes.set(title=title, xlabel=label, ylabel="bits per character")
        axes.legend()
        with files.replacing(args.plot) as part:
            picture.savefig(part, dpi=120, format="png")
        console.say(f"loss curve: {args.plot}")
