"""`numbarnn demo`: train a character model on real text by truncated backpropagation through time, and let it write."""

import math
import time

import numpy as np

from numbarnn import engines
from numbarnn.bench import console
from numbarnn.bench.cases import PEERS_CELLS, layer_type
from numbarnn.bench.charmodel import UNKNOWN, CharModel, Corpus, evaluate, load_text
from numbarnn.optim import Adam

DEFAULT_STEPS, DEFAULT_MINUTES = 1200, 2.5  # whichever ends first, without --steps and --minutes
EMBEDDING, CLIP = 64, 1.0  # size of a character's vector; largest global norm of the gradients
RECENT, EVERY = 100, 200  # steps whose mean loss is printed; steps between evaluations of the held-out text
DEFAULTS = {"cell": "lstm", "layers": 2, "hidden": 256, "dropout": 0.0, "batch": 32, "seq": 64, "lr": 4e-3, "seed": 0}
RANGES = (
    ("seed", 0, math.inf), ("dropout", 0, 1), ("lr", 1e-12, math.inf), ("minutes", 1e-9, math.inf),
    ("sample", 0, math.inf), ("temperature", 0, math.inf),
)  # fmt: skip


def add_arguments(parser):
    """Add the options of `numbarnn demo`."""
    add, count = parser.add_argument, console.at_least_1
    for name, purpose, kind in (
        ("layers", "Layers.", count), ("hidden", "Units per layer.", count), ("batch", "Streams of text.", count),
        ("seq", "Characters per window.", count), ("seed", "Seed of all random numbers.", int),
        ("dropout", "Dropout probability between layers.", float), ("lr", "Adam's learning rate.", float),
    ):  # fmt: skip
        default = DEFAULTS[name]
        add(f"--{name}", type=kind, default=default, metavar="N", help=f"{purpose} Default: {default}.")
    add("--cell", choices=PEERS_CELLS, default=DEFAULTS["cell"], help="Cell of the layers. Default: lstm.")
    add("--text", metavar="FILE", help="UTF-8 text to learn. Default: Python's documentation.")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:N or sim. Default: auto.")
    default = f"{DEFAULT_STEPS}, or {DEFAULT_MINUTES} minutes if that is sooner"
    add("--steps", type=count, metavar="N", help=f"Number of training steps. Default: {default}.")
    add("--minutes", type=float, help="Stop training after this time. Default with --steps: no limit.")
    add("--sample", type=int, default=600, metavar="N", help="Number of characters to write. Default: 600.")
    about = "Temperature of the sample; 0 takes the likeliest characters. Default: 0.7."
    add("--temperature", type=float, default=0.7, help=about)
    add("--prompt", default="The ", help='Text that the sample continues. Default: "The ".')
    console.add_json_argument(parser, "the results")


def run(args):
    """Train, then write a sample and results; return 0."""
    for name, least, below in RANGES:
        if (value := getattr(args, name)) is not None and not least <= value < below:
            said = f"--{name}: expected a number of at least {least:g} and below {below:g}, got {value}"
            raise console.WrongArguments(said)
    begin, steps, minutes = time.perf_counter(), args.steps or math.inf, args.minutes or math.inf
    if args.steps is None and args.minutes is None:
        steps, minutes = DEFAULT_STEPS, DEFAULT_MINUTES
    config = {name: getattr(args, name) for name in DEFAULTS}
    try:
        if config["dropout"] and config["layers"] == 1:
            raise ValueError(f"dropout: expected 0 with layers=1 (it is between layers), got {config['dropout']}")
        engine, corpus = engines.get(args.device), Corpus.prepare(*load_text(args.text), args.batch, args.seq)
        with engine.activate():
            trainer = Trainer(config, corpus, engine)
    except ValueError as error:
        raise console.WrongArguments(f"--{error}") from error  # each message begins with an option's name
    except (ImportError, RuntimeError) as error:
        raise console.CannotRun(str(error)) from error
    console.say(
        f"text    {corpus.name}: {corpus.characters:,} characters, {corpus.vocabulary.size - 1} different\n"
        f"model   {args.layers} x {args.cell} of {args.hidden} units, {trainer.parameters:,} parameters on "
        f"{engine.name} ({engine.device})\nstep    {args.batch} streams x {args.seq} letters"
    )
    interrupted = False
    with engine.activate():
        try:
            todo = trainer.train(steps, begin + 60 * minutes)
            for evaluated in console.progress_bar(todo, "training", None if steps == math.inf else steps):
                if evaluated:
                    console.say(f"step {trainer.step:6d}   {trainer.seconds:6.1f} s   {trainer.losses_text()}")
        except KeyboardInterrupt:
            interrupted = True
            console.say(f"stopped by Ctrl-C at step {trainer.step}")
        finish(args, trainer, interrupted)
    return 0


class Diverged(console.CannotRun):
    """The loss is not finite any more."""


class Trainer:
    """A model in training.

    Attributes:
        window: number of the next window of the training streams. state: the layer's state before it; None: zero.
        losses: bits per character of each step. held_out: (step, bits per character of the held-out text).
    """

    def __init__(self, config, corpus, device="auto"):
        self.config, self.corpus = config, corpus
        options = {"dropout": config["dropout"], "seed": config["seed"], "device": device, "dtype": "float32"}
        layer = layer_type(config["cell"])(EMBEDDING, config["hidden"], config["layers"], **options)
        self.model = CharModel(corpus.vocabulary.size, layer, seed=config["seed"])
        self.parameters = sum(buffer.size for buffer in self.model.buffers)
        self.optimizer = Adam(self.model.buffers, config["lr"], clip=CLIP)
        self.step, self.window, self.state, self.losses, self.held_out, self.seconds = 0, 0, None, [], [], 0.0

    def train_step(self):
        """Train on one window. The state is carried into the next window, and reset after the last."""
        seq, streams = self.config["seq"], self.corpus.train
        inputs, targets = map(self.model.xp.asarray, streams.window(self.window, seq))
        loss, gradients, self.state = self.model.loss_and_gradients(inputs, targets, self.state)
        self.optimizer.step(gradients)
        self.step, self.window = self.step + 1, self.window + 1
        if self.window == streams.windows(seq):
            self.window, self.state = 0, None
        self.losses.append(self._finite(float(loss) / math.log(2), "the loss"))

    def _finite(self, loss, quantity):
        if not math.isfinite(loss):
            cure = f"try a smaller --lr than {self.config['lr']:g}"
            raise Diverged(f"{quantity} became {loss} by step {self.step}; {cure}")
        return loss

    def losses_text(self):
        """Return the latest losses as text: of training (the mean of recent steps) and of the held-out text."""
        recent = float(np.mean(self.losses[-RECENT:])) if self.losses else math.nan
        return f"bits per character: training {recent:.3f}, held-out {self.held_out[-1][1]:.3f}"

    def evaluate(self):
        """Add the loss of the held-out text after this step."""
        if not self.held_out or self.held_out[-1][0] != self.step:
            loss = self._finite(evaluate(self.model, self.corpus.held_out), "the loss of the held-out text")
            self.held_out.append((self.step, loss))

    def train(self, steps, deadline=math.inf, every=EVERY):
        """Train for `steps` steps or until the deadline (time.perf_counter()).

        After each step yield whether the held-out text was evaluated, as it is every `every` steps and at the end."""
        begin, finished = time.perf_counter(), False
        while not finished:
            self.train_step()
            finished = self.step >= steps or time.perf_counter() >= deadline
            if evaluates := finished or self.step % every == 0:
                self.evaluate()
            self.seconds = time.perf_counter() - begin
            yield evaluates


def sample(model, vocabulary, length, *, temperature=1.0, seed=0, prompt=""):
    """Return `length` characters that the model writes after the prompt, one step (T = 1) at a time.

    temperature: divides the logits. 0 takes the most probable character. The unknown symbol is never drawn."""
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


def finish(args, trainer, interrupted):
    trainer.evaluate()
    corpus, config, seconds, steps = trainer.corpus, trainer.config, trainer.seconds, trainer.step
    if args.sample:
        options = {"temperature": args.temperature, "seed": args.seed, "prompt": args.prompt}
        console.say(f"\n{args.prompt}{sample(trainer.model, corpus.vocabulary, args.sample, **options)}\n")
    console.say(f"{steps} steps in {seconds:.0f} s; {trainer.losses_text()}")
    if args.json is not None:
        console.write_json(args.json, {
            "bits_per_character": np.mean(trainer.losses[-RECENT:] or [math.nan]), "steps": steps, "seconds": seconds,
            "held_out_bits_per_character": trainer.held_out[-1][1], "held_out_curve": trainer.held_out,
            "interrupted": interrupted, "configuration": config, "device": trainer.model.layer.engine.device,
            "parameters": trainer.parameters, "text": {"name": corpus.name, "characters": corpus.characters},
        })  # fmt: skip
