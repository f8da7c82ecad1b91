"""Does it run at all on this device? What fails here is left out of the other parts, and stands first in the summary."""

from contextlib import suppress

import families
import numpy as np
import times

from numbarnn import engines
from numbarnn.bench import console, info
from numbarnn.bench.cases.cases import Case, make_instance, make_layer
from numbarnn.bench.check.command import check_case
from numbarnn.bench.peers import cudnn, peers
from numbarnn.cuda.launch import BoundKernel
from numbarnn.kernels.trouble import waited
from numbarnn.schedules.persistent.tilings import DoesNotFit

PRODUCTS = {  # last word of a question -> (dtype, allow_tf32); other parts leave out what has the word in its name
    "float16": ("float16", False), "float32": ("float32", False), "bfloat16": ("bfloat16", False),
    "TF32": ("float32", True), "3xTF32": ("float32", "3x"),
}  # fmt: skip
SEEN = 3  # calls after which a call is a replay of a graph


def questions(run, of):
    if of == "compile":
        return list(times.recorded(run))
    return ["versions", *(f"product {name}" for name in PRODUCTS), "graph", "dlpack", "trouble", "cudnn"]


def answer(name, run, of):
    if of == "compile":
        return _first_calls(times.recorded(run)[name], run)
    kind, _, word = name.partition(" ")
    return {"versions": _versions, "product": _product, "graph": _graph, "dlpack": _dlpack, "trouble": _trouble,
            "cudnn": _cudnn}[kind](word, run)  # fmt: skip


def _versions(_, run):
    found = info.collect()
    return {"ok": True, "versions": found["versions"], "gpus": found["gpus"], "driver": found["driver"]}


def _product(word, run):
    """A small layer by every schedule, forward and backward, against float64."""
    dtype, tf32 = PRODUCTS[word]
    sizes = (3, 2, 5, (8,)) if run.small else (4, 3, 9, (40, 40))
    case = Case("lstm", *sizes, dtype=dtype, allow_tf32=tf32, gradients="y")
    rows = check_case(case, run.device, ["stepwise", "persistent"], with_torch=False)
    return families.judged(case, rows)


def _layer(run, **options):
    instance = make_instance(Case("lstm", 5, 3, 8, (16,), gradients="y", **options))
    layer = make_layer(instance.case, run.device, instance.parameters, "persistent")
    return layer, peers.inputs(layer, instance)


def _graph(_, run):
    """Replays of a call's graph give the same bits."""
    layer, (x, state, dy) = _layer(run)
    found = [layer.engine.to_host(layer(x, state)[0]) for _ in range(SEEN + 3)]
    replays = getattr(getattr(layer.engine, "streams", None), "replays", None)
    return {"ok": all(np.array_equal(found[0], one) for one in found) and replays != 0, "replays": replays}


def _dlpack(_, run):
    """Tensors of PyTorch on the GPU go in, and results go back, without a copy."""
    if run.device != "cuda" or run.small:
        raise console.CannotRun("tensors on a GPU need one")
    import torch

    layer, (x, state, _) = _layer(run)
    wanted = layer.engine.to_host(layer(x, state)[0])
    tensor = torch.from_dlpack(x)
    y = layer(tensor, state)[0]
    back = torch.from_dlpack(y)
    ok = np.array_equal(back.cpu().numpy(), wanted) and back.data_ptr() == y.data.ptr
    return {"ok": ok and tensor.data_ptr() == x.data.ptr}


def _trouble(_, run):
    """The word that kernels write to the host's memory arrives there."""
    engine = engines.get(run.device)
    trouble = engine.from_host(np.array([waited(0, 0, False) + 1], np.int64))
    results = engine.from_host(np.ones(4, np.float32))
    engine.spoil([results], trouble, "the smoke test")
    message = ""
    try:
        engine.to_host(results)
        getattr(engine, "check", engine.require_no_trouble)()
    except RuntimeError as error:
        message = str(error)
    poisoned = np.isnan(engine.to_host(results)).all()
    return {"ok": bool(poisoned) and "smoke test" in message, "message": message}


def _cudnn(_, run):
    if reason := cudnn.why_not():
        raise console.CannotRun(f"cuDNN cannot be called: {reason}")
    return {"ok": True, "message": str(cudnn.default_session())}


def _first_calls(question, run):
    """First calls of both passes by our schedules, which compiles them; the grid of each launch beside the blocks that
    the device holds."""
    cell, dtype, tf32, shape = question
    case = Case(cell, shape.T, shape.B, shape.I, (shape.H,) * shape.L, gradients="y", dtype=dtype, allow_tf32=tf32)
    instance, grids, refused = make_instance(case), [], []
    launch = BoundKernel.__call__

    def noted(bound, *ints):
        if bound.config.cooperative:
            compiled = bound.function.compiled
            fit = bound.resident_blocks() if hasattr(bound, "resident_blocks") else None
            grids.append({"kernel": bound.name, "grid": bound.config.grid[0], "resident": fit,
                          "registers": compiled.registers, "spills": compiled.spill_bytes})  # fmt: skip
        return launch(bound, *ints)

    BoundKernel.__call__ = noted
    try:
        for schedule in ("persistent", "auto"):
            for train in (False, True):
                with suppress(DoesNotFit):
                    contender = peers.numbarnn_contender(instance, train, run.device, schedule)
                    contender.call()
                    contender.synchronize()
                    continue
                refused.append(schedule)
    finally:
        BoundKernel.__call__ = launch
    fits = all(one["resident"] is None or one["grid"] <= one["resident"] for one in grids)
    return {"ok": fits, "grids": grids, "refused": refused}


def told(answers, of):
    lines = []
    for one in answers:
        if one["outcome"] not in ("ok", "cannot"):
            lines.append(f"FAILED: {one['question']}")
        elif one.get("message") and one["question"] == "cudnn":
            lines.append(one["message"])
    spilled = {grid["kernel"] for one in answers for grid in one.get("grids", ()) if grid["spills"] > 0}
    return lines + [f"spills: {', '.join(sorted(spilled))}"] * bool(spilled)
