"""`numbarnn demo`: train a character model on real text by truncated backpropagation through time, and let it write."""

import argparse
import json
import math
import signal
import threading
import time
from contextlib import contextmanager

import numpy as np

from numbarnn import engines
from numbarnn.bench import console
from numbarnn.bench.cases import PEERS_CELLS, layer_type
from numbarnn.bench.charmodel import DOCUMENTATION, UNKNOWN, Adam, CharModel, Corpus, evaluate, load_text
from numbarnn.common import files

DEFAULT_STEPS, DEFAULT_MINUTES = 1200, 2.5  # without --steps and --minutes: so many steps, but no longer than this
DEFAULT_PLOT, CURVE = "numbarnn_demo.png", "the loss curve (--plot none does without)"
EMBEDDING, CLIP = 64, 1.0  # size of a character's vector; largest global norm of the gradients
RECENT = 100  # steps that the training loss is averaged over for a report
FORMAT = "numbarnn demo checkpoint 1"
# What defines a training run, besides the text: two runs with equal ones give equal losses.
DEFAULTS = {"cell": "lstm", "layers": 2, "hidden": 256, "dropout": 0.0, "batch": 32, "seq": 64, "lr": 4e-3, "seed": 0}


def number(least, below=math.inf, kind=float, what="a number"):
    """An argparse type: a number of at least (or, for 0.0, above) `least`, and below another."""

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
    for name, purpose, options in (
        ("cell", "kind of recurrent layer", {"choices": PEERS_CELLS}),
        ("layers", "recurrent layers", {"type": count, "metavar": "L"}),
        ("hidden", "units in each", {"type": count, "metavar": "H"}),
        ("dropout", "probability, between layers", {"type": number(0, 1, what="a probability"), "metavar": "P"}),
        ("batch", "streams of text in parallel", {"type": count, "metavar": "B"}),
        ("seq", "characters in a window", {"type": count, "metavar": "T"}),
        ("lr", "Adam's learning rate; may change on resuming", {"type": number(1e-12)}),
        ("seed", "of the parameters, the dropout and the sample", {"type": whole}),
    ):
        add(f"--{name}", help=f"{purpose} (default: {DEFAULTS[name]}; with --resume: as in the checkpoint)", **options)
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
        f"on {layer.engine.name} ({layer.engine.device})\n"
        f"step    {config['batch']} streams x {config['seq']} characters"
        + (f"\nresumed at step {trainer.step}" if trainer.step else "")
        + (f"\nnothing to train: step {steps} is done; a larger --steps goes on" if trainer.step >= steps else "")
    )
    with engine.activate():
        interrupted, not_saved = train(trainer, steps, begin + 60 * minutes, args.save)
        finish(args, trainer, interrupted)
    if not_saved is not None:
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
    if arrays is not None:
        restore(trainer, about, arrays, args.resume)
    return trainer


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
        self.parameters = sum(weights.size for weights in self.model.buffers)
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
        return f"bits per character: training {recent:.3f}, held-out {self.held_out[-1][1]:.3f}", recent

    def train(self, steps, deadline=math.inf, every=200, stop=None, on_step=lambda: None, on_evaluated=lambda: None):
        """Train until step `steps`, the deadline (time.perf_counter()), or until the event `stop` is set.

        Every `every` steps, and at the end, the held-out text is evaluated. on_step() and on_evaluated() are called
        after each step and each evaluation.
        """
        begin, finished = time.perf_counter() - self.seconds, False
        while not finished:
            if self.step < steps:
                self.train_step()
                on_step()
            now = time.perf_counter()
            finished = self.step >= steps or now >= deadline or (stop is not None and stop.is_set())
            if finished or self.step % every == 0:
                if not self.held_out or self.held_out[-1][0] != self.step:
                    loss = self._finite(evaluate(self.model, self.corpus.held_out), "the loss of the held-out text")
                    self.held_out.append((self.step, loss))
                self.seconds = time.perf_counter() - begin
                on_evaluated()


def train(trainer, steps, deadline, path):
    """Train, and save at each evaluation: (whether Ctrl-C ended it, the OSError of the last saving or None)."""
    not_saved = None

    def on_evaluated():
        nonlocal not_saved
        console.say(f"step {trainer.step:6d}   {trainer.seconds:6.1f} s   {trainer.told()[0]}")
        try:
            if path is not None:
                save(path, trainer)
            not_saved = None
        except OSError as error:  # a full disk does not end hours of training, and may have room later
            not_saved = error
            console.say(f"no checkpoint: {error.filename}: {error.strerror}")

    with console.Progress() as progress, interrupt_flag() as stop:
        progress.start("training", None if steps == math.inf else max(steps, trainer.step))
        progress.update("training", trainer.step)
        step = lambda: progress.update("training")  # noqa: E731
        trainer.train(steps, deadline, stop=stop, on_step=step, on_evaluated=on_evaluated)
        return stop.is_set(), not_saved


@contextmanager
def interrupt_flag():
    """An event that Ctrl-C sets, so that a step is never cut in two; a second Ctrl-C stops at once."""
    flag, former = threading.Event(), signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, lambda *_: (flag.set(), signal.signal(signal.SIGINT, former)))
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, former)


def sample(model, vocabulary, length, *, temperature=1.0, seed=0, prompt=""):
    """Return `length` characters that the model writes after the prompt, one step (T = 1) at a time.

    temperature divides the logits; 0 takes the most probable character. The unknown symbol is never drawn. Diverged:
    the model's numbers are not finite.
    """
    rng = np.random.default_rng([seed, 2])  # another stream than the parameters'
    numbers, state, drawn = vocabulary.encode(prompt or vocabulary.characters[0]).reshape(-1, 1), None, []
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


# --------------------------------------------------------------------------------------------------------- checkpoints
def arrays_of(trainer):
    """Return name -> array on the device: both buffers of parameters, and Adam's moments of each."""
    kinds = {"weights": trainer.model.buffers, "first": trainer.optimizer.first, "second": trainer.optimizer.second}
    return {f"{kind}/{number}": array for kind, arrays in kinds.items() for number, array in enumerate(arrays)}


def save(path, trainer):
    """Write everything needed to go on exactly. The file is replaced whole: an interruption leaves the former one."""
    state = trainer.state if isinstance(trainer.state, tuple) else () if trainer.state is None else (trainer.state,)
    found = arrays_of(trainer) | {f"state/{n}": part for n, part in enumerate(state)}
    arrays = {name: trainer.model.layer.engine.to_host(array) for name, array in found.items()}
    arrays |= {"losses": np.array(trainer.losses), "held_out": np.array(trainer.held_out).reshape(-1, 2)}
    about = {"format": FORMAT, "configuration": trainer.config, "name": trainer.corpus.name}
    about |= {"digest": trainer.corpus.digest, "adam_steps": trainer.optimizer.steps}
    about |= {name: getattr(trainer, name) for name in ("step", "window", "seconds")}
    about |= {"dropout_calls": trainer.model.layer.training_calls}  # with the seed, the key of the next masks
    with files.replacing(path) as part, part.open("wb") as file:
        np.savez(file, **arrays, about=np.array(json.dumps(about)))


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
    """Put a new trainer, of the same configuration and text, where the saved one was; ValueError if it is damaged."""
    try:
        for name, array in arrays_of(trainer).items():
            array[...] = trainer.model.xp.asarray(arrays[name])
        parts = [trainer.model.xp.asarray(arrays[name]) for name in ("state/0", "state/1") if name in arrays]
        trainer.state = None if not parts else parts[0] if len(parts) == 1 else tuple(parts)
        trainer.losses = arrays["losses"].tolist()
        trainer.held_out = [(int(step), loss) for step, loss in arrays["held_out"]]
        trainer.step, trainer.window, trainer.seconds = about["step"], about["window"], about["seconds"]
        trainer.optimizer.steps, trainer.model.layer.training_calls = about["adam_steps"], about["dropout_calls"]
    except (KeyError, ValueError) as error:
        raise ValueError(f"resume: {path!r} is damaged: {type(error).__name__}: {error}") from error


# -------------------------------------------------------------------------------------------------------------- results
def finish(args, trainer, interrupted):
    """Let the model write; tell the results, and write them and their picture to files."""
    if interrupted:
        console.say(f"stopped by Ctrl-C at step {trainer.step}")
    corpus, config, seconds, steps = trainer.corpus, trainer.config, trainer.seconds, trainer.step
    if args.sample:
        options = {"temperature": args.temperature, "seed": config["seed"], "prompt": args.prompt}
        written = sample(trainer.model, corpus.vocabulary, args.sample, **options)
        console.say(f"\n{args.prompt}{written}\n")
    words, recent = trainer.told()
    console.say(f"{steps} steps in {seconds:.0f} s; {words}")
    if args.json is not None:
        console.write_json(args.json, {
            "bits_per_character": recent, "held_out_bits_per_character": trainer.held_out[-1][1], "steps": steps,
            "seconds": seconds, "characters_per_second": steps * config["batch"] * config["seq"] / seconds,
            "interrupted": interrupted, "configuration": config, "device": trainer.model.layer.device,
            "device_name": trainer.model.layer.engine.device, "parameters": trainer.parameters,
            "text": {"name": corpus.name, "sha256": corpus.digest, "vocabulary": corpus.vocabulary.size,
                     "characters": corpus.characters},
            "held_out_curve": [{"step": step, "bits_per_character": loss} for step, loss in trainer.held_out],
        })  # fmt: skip
    if args.plot is not None:
        picture = console.figure(CURVE, figsize=(8, 4.5))
        axes = picture.subplots()
        axes.plot(range(1, len(trainer.losses) + 1), trainer.losses, alpha=0.5, linewidth=0.8, label="training")
        axes.plot(*zip(*trainer.held_out, strict=True), "o-", color="tab:orange", label="held-out")
        title = f"{config['layers']} × {config['cell']}, {config['hidden']} units, {corpus.name}"
        label = f"step of {config['batch']} × {config['seq']} characters"
        axes.set(title=title, xlabel=label, ylabel="bits per character")
        axes.grid(alpha=0.3)
        axes.legend()
        with files.replacing(args.plot) as part:
            picture.savefig(part, dpi=120, format="png")
        console.say(f"loss curve: {args.plot}")
