"""`numbarnn plan`: show which schedule a problem gets on a GPU, why, and its plan. Needs no GPU."""

from dataclasses import asdict

from numbarnn import engines
from numbarnn.bench import console, gantt
from numbarnn.bench.cells import ABOUT_CELL, built_in_or_own
from numbarnn.common import files
from numbarnn.common.precision import DTYPES
from numbarnn.engines.gpu import profiles
from numbarnn.layers import checks
from numbarnn.layers.costs import costs_of, segments_of
from numbarnn.schedules import SCHEDULES, Problem, choose, estimate
from numbarnn.schedules.explain import explain, wider
from numbarnn.weights.space import sizes_of_layers

PICTURES = (".png", ".svg", ".pdf")
DEVICE = "device"  # the profile of the GPU in this machine
# Name of an argument in layers' errors -> the command's option.
OPTIONS = {"proj_size": "--proj-size", "hidden_size": "--hidden", "input_size": "--input-size"}


def add_arguments(parser):
    """Add the options of `numbarnn plan`."""
    add, count = parser.add_argument, console.at_least_1
    add("--cell", type=built_in_or_own, default="lstm", metavar="CELL", help=ABOUT_CELL)
    expected = "whole numbers of at least 1 with commas between, such as 1024,1024,512;"
    sizes = lambda text: console.whole_numbers(text, expected)  # noqa: E731
    add("--hidden", type=sizes, required=True, metavar="H[,H]", help="Hidden sizes of all layers, such as 1024,512.")
    add("--batch", type=count, required=True, metavar="B", help="Number of sequences.")
    add("--steps", type=count, required=True, metavar="T", help="Number of time steps.")
    about = f"The GPU. Default: {DEVICE}, the one in this machine."
    add("--profile", choices=[*profiles.PROFILES, DEVICE], default=DEVICE, help=about)
    add("--input-size", type=count, metavar="I", help="Features of x. Default: the first layer's hidden size.")
    about = "Size of the projected h, of an LSTM or of a cell that projects its output."
    add("--proj-size", type=count, default=0, metavar="P", help=about)
    add("--dtype", choices=DTYPES, default="float32", help="Default: float32.")
    add("--bidirectional", action="store_true", help="Add a second direction, backward in time.")
    add("--dropout", type=float, default=0.0, metavar="P", help="Dropout probability between layers in training.")
    about = "Keep every K-th step's states in training: show what this saves and costs, and the plan of K steps."
    add("--checkpoint-every", type=count, default=0, metavar="K", help=about)
    passes = parser.add_mutually_exclusive_group()
    passes.add_argument("--inference", action="store_true", help="Plan inference, which keeps nothing for backward.")
    passes.add_argument("--backward", action="store_true", help="Show the backward pass too.")
    add("--schedule", choices=("auto", *SCHEDULES), default="auto", help="Default: auto, which chooses one.")
    about = f"Also draw the plan ({', '.join(PICTURES)}; needs matplotlib)."
    add("--plot", type=console.json_path, metavar="FILE", help=about)
    console.add_json_argument(parser, "the answer")


def run(args):
    """Print the answer; return 0."""
    try:
        problem, schedule, costs = problem_of(args), choose(args.schedule), None
        if problem.has_checkpoints:
            costs, problem = costs_of(schedule, problem), next(iter(segments_of(problem)))
        explanations = [explain(schedule, problem, back) for back in (False, True)[: 1 + args.backward]]
    except ValueError as reason:
        said = str(reason)
        for name, option in OPTIONS.items():
            said = said.replace(name, option)
        raise console.WrongArguments(said) from reason
    except RuntimeError as reason:
        raise console.CannotRun(str(reason)) from reason
    if args.plot and args.plot.suffix.lower() not in PICTURES:
        raise console.WrongArguments(f"--plot: expected a file that ends in {', '.join(PICTURES)}; got '{args.plot}'")
    picture = gantt.figure(explanations) if args.plot else None
    console.say("\n".join([problem_text(problem), *wider(problem)]))
    if costs:
        console.say(f"{costs}\nWhat follows is of the first segment")
    for explanation in explanations:
        print_pass(explanation)
    if args.json:
        more = {"checkpoints": asdict(costs)} if costs else {}
        console.write_json(args.json, as_json(problem, explanations) | more)
    if picture:
        with files.replacing(args.plot) as part:
            picture.savefig(part, dpi=150)
        console.say(f"picture: {args.plot}")
    return 0


def problem_of(args):
    """Return the `Problem` of the arguments. Raise ValueError if the cell cannot have these sizes."""
    if args.profile != DEVICE:
        profile = profiles.get(args.profile)
    elif problem := engines.why_not("cuda"):
        raise RuntimeError(
            f"--profile {DEVICE} needs a GPU in this machine: {problem}. "
            f"Or choose a recorded profile: --profile {', '.join(profiles.PROFILES)}"
        )
    else:
        profile = engines.get("cuda").profile
    cell, hidden, inputs, directions = args.cell, args.hidden, args.input_size or args.hidden[0], 1 + args.bidirectional
    projection, dropout = checks.proj_size(args.proj_size, cell, hidden), checks.probability(args.dropout, "--dropout")
    checks.recurrent_matrix(cell, hidden, projection)
    widths = tuple(w["H"] for _, w in sizes_of_layers(cell.parameters, inputs, hidden, directions, projection))
    checks.larger_states(cell, hidden, widths, "linear")
    problem = Problem(
        "cuda", cell, input_size=inputs, hidden_sizes=widths, directions=directions, steps=args.steps, batch=args.batch,
        dtype=args.dtype, training=not args.inference, dropout=dropout, profile=profile, projection=projection,
        checkpoint_every=args.checkpoint_every, bias=cell.bias or "double", units=hidden if widths != hidden else (),
    )  # fmt: skip
    _ = problem.space  # raises if the equations cannot have these sizes
    return problem


# -------------------------------------------------------------------------------------------------------------- output
def problem_text(problem):
    """Describe a problem and its device."""
    hidden, profile = ",".join(map(str, problem.units or problem.hidden_sizes)), problem.profile
    words = [f"{problem.cell.name}: I={problem.input_size} H={hidden}"]
    words += [f"B={problem.batch} T={problem.steps} {problem.dtype}"]
    words += ["bidirectional"] * (problem.directions == 2) + [f"P={problem.projection}"] * bool(problem.projection)
    words += [f"dropout={problem.dropout}"] if problem.dropping else []
    words += ["training" if problem.training else "inference"]
    return (
        f"{' '.join(words)}\non {profile.name}: {profile.multiprocessors} SMs at {profile.clock_ghz:.2f} GHz, each "
        f"with {profile.shared_bytes / 1024:.0f} KiB of shared memory and {profile.registers} registers; L2 cache "
        f"{profile.l2_gb_s / 1e3:.1f} TB/s"
    )


def print_pass(explanation):
    """Print the schedule of a pass, the reason, and the expected time of launches and steps."""
    problem, option = explanation.problem, explanation.taken
    console.say(f"\n{explanation}\n")
    if not option.launches:
        return
    parts = ["exchange", "read", "multiply", "add", *["within"] * any(one.estimate.rounds for one in option.launches)]
    columns = ["launch", "blocks", "threads", "registers at most", "shared KiB", "by", "sequences at once", "µs"]
    columns += ["a step", "most of it", *parts, "steps"]
    rows = [
        [
            launch.layers, launch.blocks, launch.tile.threads, max_registers(launch, problem.profile),
            f"{launch.shared_bytes / 1024:.1f}", launch.tile.math, launch.tile.sequences, f"{launch.microseconds:.0f}",
            f"{launch.estimate.step:.2f}", launch.estimate.bound,
            *(f"{getattr(launch.estimate, part):.2f}" for part in parts), launch.steps_in_all,
        ]
        for launch in option.launches
    ]  # fmt: skip
    console.print_table(
        "Launches; expected µs, and of a step", columns, rows, {*columns} - {"launch", "by", "most of it"}
    )
    products = sum(estimate.product_us(task, problem) for task in option.plan.tasks)
    console.say(f"Expected: {option.microseconds:.0f} µs in launches, and about {products:.0f} µs in products.")


def max_registers(launch, profile):
    """Return the most registers that the kernel's launch bounds allow a thread."""
    return min(255, profile.registers // launch.tile.threads)


def as_json(problem, explanations):
    """Return what is printed as dicts."""
    names = "dtype", "input_size", "hidden_sizes", "directions", "steps", "batch", "training", "dropout"
    described = {name: getattr(problem, name) for name in names}
    passes = [
        {
            "pass": "backward" if one.backward else "forward", "why": one.why, "schedule": one.taken.schedule,
            "reason": one.taken.reason, "launches_us": one.taken.microseconds,
            "launches": [_launch(problem, launch) for launch in one.taken.launches],
            "others": [{"schedule": other.schedule, "reason": other.reason, "runs": other.plan is not None}
                       for other in one.others],
        }
        for one in explanations
    ]  # fmt: skip
    return {"problem": described | {"cell": problem.cell.name, "profile": asdict(problem.profile)}, "passes": passes}


def _launch(problem, launch):
    names = "first", "last", "blocks", "shared_bytes", "microseconds"
    return {name: getattr(launch, name) for name in names} | {
        "threads": launch.tile.threads, "max_registers": max_registers(launch, problem.profile),
        "tile": asdict(launch.tile), "estimate": asdict(launch.estimate), "step_us": launch.estimate.step,
        "bound": launch.estimate.bound, "weights": launch.home,
    }  # fmt: skip
