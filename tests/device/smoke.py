"""Check that the basics work on this device. Other parts leave out what failed here: the last word of a question."""

from contextlib import suppress

import families
import numpy as np
import times

from numbarnn import engines
from numbarnn.bench import console
from numbarnn.bench.cases.cases import Case, make_instance, make_layer
from numbarnn.bench.check.command import check_case
from numbarnn.bench.peers import cudnn, peers
from numbarnn.cuda.launch import BoundKernel
from numbarnn.kernels.trouble import waited
from numbarnn.schedules.persistent.tilings import DoesNotFit

PRODUCTS = {  # dtype, allow_tf32
    "float16": ("float16", False), "float32": ("float32", False), "bfloat16": ("bfloat16", False),
    "TF32": ("float32", True), "3xTF32": ("float32", "3x"),
}  # fmt: skip
CALLS = 6  # the last ones are replays of a graph


def questions(run, part):
    if part == "compile":
        return list(times.recorded(run))
    return [*(f"product {name}" for name in PRODUCTS), *OTHERS]


def answer(name, run, part):
    if part == "compile":
        return first_calls(times.recorded(run)[name], run)
    return OTHERS[name](run) if name in OTHERS else product(run, *PRODUCTS[name.split()[-1]])


def product(run, dtype, tf32):
    """Check a small layer by two schedules, forward and backward, against float64."""
    sizes = (3, 2, 5, (8,)) if run.small else (4, 3, 9, (40, 40))
    case = Case("lstm", *sizes, dtype=dtype, allow_tf32=tf32, gradients="y")
    return families.judged(case, check_case(case, run.device, ["stepwise", "persistent"], with_torch=False))


def small_layer(run):
    instance = make_instance(Case("lstm", 5, 3, 8, (16,), gradients="y"))
    layer = make_layer(instance.case, run.device, instance.parameters, "persistent")
    return layer, *peers.inputs(layer, instance)[:2]


def graph(run):
    """Check that replays of a call's graph give the same bits."""
    layer, x, state = small_layer(run)
    results = [layer.engine.to_host(layer(x, state)[0]) for _ in range(CALLS)]
    replays = getattr(getattr(layer.engine, "streams", None), "replays", None)
    return {"ok": all(np.array_equal(results[0], one) for one in results) and replays != 0, "replays": replays}


def dlpack(run):
    """Check that PyTorch's tensors on the GPU go in, and results come back, without a copy."""
    if run.small:
        raise console.CannotRun("it takes a GPU")
    import torch

    layer, x, state = small_layer(run)
    tensor = torch.from_dlpack(x)
    y = layer(tensor, state)[0]
    back = torch.from_dlpack(y)
    same = np.array_equal(back.cpu().numpy(), layer.engine.to_host(layer(x, state)[0]))
    return {"ok": same and back.data_ptr() == y.data.ptr and tensor.data_ptr() == x.data.ptr}


def error_flag(run):
    """Check that the error flag, which kernels write to the host's memory, arrives there."""
    engine, message = engines.get(run.device), ""
    flag = engine.from_host(np.array([waited(0, 0, False) + 1], np.int64))
    results = engine.from_host(np.ones(4, np.float32))
    engine.spoil([results], flag, "the smoke test")
    try:
        poisoned = np.isnan(engine.to_host(results)).all()
        getattr(engine, "check", engine.require_no_trouble)()
    except RuntimeError as error:
        message = str(error)
    return {"ok": bool(poisoned) and "smoke test" in message, "message": message}


def cudnn_found(run):
    if reason := cudnn.why_not():
        raise console.CannotRun(f"cuDNN cannot be called: {reason}")
    return {"ok": True, "told": [str(cudnn.default_session())]}


OTHERS = {"graph": graph, "dlpack": dlpack, "error flag": error_flag, "cuDNN": cudnn_found}


def first_calls(case, run):
    """Call both passes by our schedules, which compiles them; note each launch's grid and the blocks that fit."""
    instance, grids, launch = make_instance(case), [], BoundKernel.__call__

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
    finally:
        BoundKernel.__call__ = launch
    spilled = {one["kernel"] for one in grids if one["spills"]}
    return {"ok": all(one["resident"] is None or one["grid"] <= one["resident"] for one in grids), "grids": grids,
            "told": [f"spills: {kernel}" for kernel in sorted(spilled)]}  # fmt: skip
