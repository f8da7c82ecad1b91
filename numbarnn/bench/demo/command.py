"""`numbarnn demo`: trains a character model on real text, and lets it write."""

import argparse
import importlib.util
import math
import os
import signal
import threading
import time
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, fields

import numpy as np

from numbarnn import cells, engines
from numbarnn.bench.cases.cases import PEERS_CELLS
from numbarnn.bench.console import (
    CannotRun,
    MissingPackage,
    WrongArguments,
    figure,
    json_path,
    positive_int,
    say,
    write_json,
)
from numbarnn.bench.demo import chart
from numbarnn.bench.demo.checkpoint import Checkpoint, save
from numbarnn.bench.demo.text import Corpus, load_text
from numbarnn.bench.demo.training import EMBEDDING, Config, Trainer, sample
from numbarnn.common import files

DEFAULT_STEPS = 1200  # when neither --steps nor --minutes is given:
DEFAULT_MINUTES = 2.5  # that many steps, but no longer than this
DEFAULT_PLOT = "numbarnn_demo.png"
CURVE = "the loss curve (--plot none does without)"
SMOOTH = 50  # steps that the curve of the training loss is averaged over


def add_arguments(parser):
    """Options of `numbarnn demo`. Those of the model are None when not given: a checkpoint may say them."""
    model = parser.add_argument_group("the model (with --resume: as in the checkpoint)")
    for name, purpose, options in (
        ("cell", "kind of recurrent layer", {"choices": PEERS_CELLS}),
        ("layers", "recurrent layers", {"type": positive_int, "metavar": "L"}),
        ("hidden", "units in each", {"type": positive_int, "metavar": "H"}),
        ("dropout", "probability, between layers", {"type": float, "metavar": "P"}),
        ("batch", "streams of text in parallel", {"type": positive_int, "metavar": "B"}),
        ("seq", "characters in a window", {"type": positive_int, "metavar": "T"}),
        ("lr", "Adam's learning rate; may change on resuming", {"type": float}),
        ("seed", "of the parameters, the dropout and the sample", {"type": int}),
    ):
        model.add_argument(f"--{name}", help=f"{purpose} (default: {getattr(Config, name)})", **options)

    add = parser.add_argument_group("the work").add_argument
    add("--text", metavar="FILE", help="UTF-8 text to learn (default: Python's documentation)")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:N or sim (default: auto)")
    default = f"{DEFAULT_STEPS}, or {DEFAULT_MINUTES} minutes if that is sooner"
    add("--steps", type=positive_int, metavar="N", help=f"train until this step (default: {default})")
    add("--minutes", type=float, help="train no longer than this (default with --steps: no limit)")
    add("--sample", type=int, default=600, metavar="N", help="characters to write at the end (default: 600)")
    add("--temperature", type=float, default=0.7, help="of the sample, 0 takes the likeliest characters (default: 0.7)")
    add("--prompt", default="The ", help='text that the sample continues (default: "The ")')

    add = parser.add_argument_group("files").add_argument
    add("--json", type=json_path, metavar="FILE", help="write the results to FILE, as JSON")
    curve = f"loss curve to write, or none (default: {DEFAULT_PLOT})"
    add("--plot", type=_plot_path, default=DEFAULT_PLOT, metavar="FILE.png", help=curve)
    add("--save", type=json_path, metavar="FILE", help="keep a checkpoint in FILE (.npz)")
    add("--resume", metavar="FILE", help="go on from a checkpoint")


def _plot_path(text):
    try:
        return None if text == "none" else json_path(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error} (--plot none does without)") from error


def run(args):
    """Trains, samples and reports; returns 0."""
    if args.plot is not None:
        figure(CURVE)  # says now, not after the work, that matplotlib is missing
    started = time.perf_counter()
    try:
        steps, minutes = budget(args)
        engine = engines.get(args.device)
        with engine.activate():
            trainer = prepare(args, engine)
    except ValueError as error:
        raise WrongArguments(f"--{error}") from error  # all begin with what they are about, which an option says
    except (ImportError, RuntimeError) as error:
        raise CannotRun(str(error)) from error
    with engine.activate():
        _describe(trainer)
        if trainer.step >= steps:
            say(f"nothing to train: step {steps} is done; a larger --steps goes on")
        interrupted, not_saved = _train(trainer, steps, started + 60 * minutes, args.save)
        _finish(args, trainer, interrupted)
    if not_saved is not None:
        raise not_saved
    if args.save is not None:
        say(f"checkpoint: {args.save}")
    return 0


def budget(args):
    """Steps and minutes to train for at most, after checking the options that argparse cannot check."""
    if args.minutes is not None and not args.minutes > 0:
        raise ValueError(f"minutes: expected a positive number, got {args.minutes}")
    if args.sample < 0:
        raise ValueError(f"sample: expected a number of characters of at least 0, got {args.sample}")
    if not 0 <= args.temperature < math.inf:
        raise ValueError(f"temperature: expected a number of at least 0, got {args.temperature}")
    if args.steps is None and args.minutes is None:
        return DEFAULT_STEPS, DEFAULT_MINUTES
    return args.steps or math.inf, args.minutes or math.inf


def prepare(args, engine):
    """The trainer, from scratch or from a checkpoint, ready to go."""
    names = [field.name for field in fields(Config)]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.resume is None:
        config, checkpoint = Config(**given), None
    else:
        checkpoint = Checkpoint(args.resume)
        config = Config(**asdict(checkpoint.config) | given)
        checkpoint.check_config(config)
    path = args.text if args.text is not None or checkpoint is None else checkpoint.text_path
    corpus = Corpus.prepare(*load_text(path), config.batch, config.seq)
    if checkpoint is not None:
        checkpoint.check_corpus(corpus)
    if engine.name != "cuda":
        check_memory(config)
    trainer = Trainer(config, corpus, engine)
    if checkpoint is not None:
        checkpoint.restore(trainer)
    return trainer


def check_memory(config):
    """ValueError where weights, gradients and Adam's two moments are more than this machine has memory."""
    gates = cells.get(config.cell).num_gates
    inputs = EMBEDDING + (config.layers - 1) * config.hidden
    needed = 4 * 4 * gates * config.hidden * (inputs + config.layers * config.hidden)  # floats of 4 bytes
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):  # this system does not say
        return
    if needed > memory:
        raise ValueError(
            f"hidden: expected a model that fits into the {memory / 2**30:.0f} GiB of this machine, got "
            f"{config.layers} layers of {config.hidden} units, which need {needed / 2**30:.3g} GiB; use a smaller "
            "--hidden or --layers"
        )


def _describe(trainer):
    config, corpus, layer = trainer.config, trainer.corpus, trainer.model.layer
    parameters = sum(weights.size for weights in trainer.model.buffers)
    say(f"text    {corpus.name}: {corpus.characters:,} characters, {corpus.vocabulary.size - 1} different")
    model = f"{config.layers} x {config.cell} of {config.hidden} units, {parameters:,} parameters"
    say(f"model   {model}, on {layer.engine.name} ({layer.engine.device})")
    say(f"step    {config.batch} streams x {config.seq} characters")
    if trainer.step:
        say(f"resumed at step {trainer.step}")


# --------------------------------------------------------------------------------------------- training
def _train(trainer, steps, deadline, save_path):
    """Trains, and saves at each evaluation: (whether Ctrl-C ended it, the OSError of the last saving or None)."""
    not_saved = None
    with _progress_bar(trainer, steps) or nullcontext() as bar, _interrupt_flag() as interrupted:
        tell = say if bar is None else bar.write

        def on_step(trainer):
            if bar is not None:
                bar.update(trainer.step - bar.n)
                bar.set_postfix_str(f"{trainer.recent_loss():.3f} bits per character", refresh=False)

        def on_evaluated(trainer):
            step, loss = trainer.held_out[-1]
            tell(
                f"step {step:6d}   {trainer.seconds:6.1f} s   bits per character: "
                f"training {trainer.recent_loss():.3f}, held-out {loss:.3f}"
            )
            nonlocal not_saved
            try:
                if save_path is not None:
                    save(save_path, trainer)
                not_saved = None
            except OSError as error:  # a full disk does not end hours of training, and may have room later
                not_saved = error
                tell(f"no checkpoint: {error.filename}: {error.strerror}")

        hooks = {"should_stop": interrupted.is_set, "on_step": on_step, "on_evaluated": on_evaluated}
        trainer.train(steps, deadline=deadline, **hooks)
        return interrupted.is_set(), not_saved


@contextmanager
def _interrupt_flag():
    """An event that Ctrl-C sets, so that a step is never cut in two; a second Ctrl-C stops at once."""
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only that one may set signal handlers
        yield flag
        return
    former = signal.getsignal(signal.SIGINT)

    def on_signal(number, frame):
        flag.set()
        signal.signal(signal.SIGINT, former)

    signal.signal(signal.SIGINT, on_signal)
    try:
        yield flag
    finally:
        signal.signal(signal.SIGINT, former)


def _progress_bar(trainer, steps):
    """A bar of tqdm's; None where that is not installed, and only lines are shown."""
    if importlib.util.find_spec("tqdm") is None:
        say(str(MissingPackage("tqdm", "a progress bar", "cli")), error=True)
        return None
    from tqdm import tqdm

    total = None if steps == math.inf else max(steps, trainer.step)
    # disable=None: no bar where the error stream is not a terminal, but `write` works
    return tqdm(total=total, initial=trainer.step, unit=" steps", dynamic_ncols=True, disable=None)


# --------------------------------------------------------------------------------------------- reporting
def _finish(args, trainer, interrupted):
    if interrupted:
        say(f"stopped by Ctrl-C at step {trainer.step}")
    if trainer.losses:
        say("\n".join(["", *chart.show(trainer.losses)]))
    if args.sample:
        options = {"temperature": args.temperature, "seed": trainer.config.seed, "prompt": args.prompt}
        written = sample(trainer.model, trainer.corpus.vocabulary, args.sample, **options)
        say(f"\n{args.prompt}{written}\n")
    results = results_of(trainer, interrupted)
    say(
        f"{results['steps']} steps in {results['seconds']:.0f} s; bits per character: "
        f"training {results['bits_per_character']:.3f}, held-out {results['held_out_bits_per_character']:.3f}"
    )
    if (repeated := trainer.corpus.held_out_repeated) >= 0.01:
        say(f"({repeated:.0%} of the held-out passages also stand in the training text)")
    if args.json is not None:
        write_json(args.json, results)
    if args.plot is not None:
        plot(args.plot, trainer)
        say(f"loss curve: {args.plot}")


def results_of(trainer, interrupted):
    """The results as a dict: what `--json` writes."""
    corpus = trainer.corpus
    steps, seconds = trainer.step, trainer.seconds
    return {
        "bits_per_character": trainer.recent_loss(),
        "held_out_bits_per_character": trainer.held_out[-1][1],
        "steps": steps,
        "seconds": seconds,
        "characters_per_second": steps * trainer.config.batch * trainer.config.seq / seconds,
        "interrupted": interrupted,
        "configuration": asdict(trainer.config),
        "device": trainer.model.layer.device,
        "device_name": trainer.model.layer.engine.device,
        "parameters": sum(weights.size for weights in trainer.model.buffers),
        "text": {"name": corpus.name, "sha256": corpus.digest, "vocabulary": corpus.vocabulary.size}
        | {name: getattr(corpus, name) for name in ("characters", "held_out_unknown", "held_out_repeated")},
        "held_out_curve": [{"step": step, "bits_per_character": loss} for step, loss in trainer.held_out],
    }


def plot(path, trainer):
    """Writes the loss curve: training loss of each step and smoothed, held-out loss."""
    losses = np.array(trainer.losses)
    picture = figure(CURVE, figsize=(8, 4.5))
    axes = picture.subplots()
    steps = np.arange(1, losses.size + 1)
    axes.plot(steps, losses, color="tab:blue", alpha=0.25, linewidth=0.8, label="training, each step")
    if losses.size > SMOOTH:
        mean = np.convolve(losses, np.full(SMOOTH, 1 / SMOOTH), mode="valid")
        middle = steps[: mean.size] + (SMOOTH - 1) / 2
        axes.plot(middle, mean, color="tab:blue", label=f"training, mean of {SMOOTH}")
    if trainer.held_out:
        axes.plot(*zip(*trainer.held_out, strict=True), "o-", color="tab:orange", label="held-out")
    config = trainer.config
    axes.set_title(f"{config.layers} × {config.cell}, {config.hidden} units, {trainer.corpus.name}")
    axes.set(xlabel=f"step of {config.batch} × {config.seq} characters", ylabel="bits per character")
    axes.grid(alpha=0.3)
    axes.legend()
    with files.replacing(path) as part:
        picture.savefig(part, dpi=120, format="png")
