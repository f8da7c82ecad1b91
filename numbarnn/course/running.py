"""Run kernels of students, and show the progress of long loops."""

import time

import numpy as np


def launch(kernel, grid, block, *arguments, seed=0):
    """Run a `@cuda.jit` kernel on NumPy arrays, which it changes in place.

    All blocks run at once: on a GPU by a cooperative launch, else in the library's simulator, whose threads take turns
    in a random order. In Numba's own simulator, `kernel[grid, block](...)` runs one block after another, so blocks that
    wait for each other never end.

    Args:
        kernel: a function decorated with `@cuda.jit`.
        grid: number of blocks: an int, or (x, y) or (x, y, z).
        block: threads of each block, an int or a tuple as for `grid`.
        arguments: NumPy arrays, ints (passed as int32) and floats (passed as float32).
        seed: seed of the simulator's random order.

    Raises:
        RuntimeError: in the simulator, a thread raised an error or waits for ever.
    """
    from numbarnn import engines
    from numbarnn.cuda.backend import using
    from numbarnn.cuda.launch import Kernel, LaunchConfig

    config = LaunchConfig(grid, block, cooperative=True)
    plain = [_of_kernel(argument) for argument in arguments]
    if engines.why_not("cuda"):
        from numbarnn.cuda import simulator

        with simulator.schedule(seed=seed), using("python"):
            Kernel(kernel).bind(config, *plain)()
        return
    engine = engines.get("cuda")
    on_device = [engine.from_host(one) if isinstance(one, np.ndarray) else one for one in plain]
    Kernel(kernel).bind(config, *on_device)()
    for host, device in zip(plain, on_device, strict=True):
        if isinstance(host, np.ndarray):
            host[...] = engine.to_host(device)


def _of_kernel(argument):
    if isinstance(argument, int):
        return np.int32(argument)
    return np.float32(argument) if isinstance(argument, float) else argument


def progress(steps, what="step"):
    """Yield the elements of a sequence, and print how many are done and after how many seconds.

    Args:
        steps: anything with a length.
        what: name of an element in the text.
    """
    start, shown = time.perf_counter(), 0.0
    for number, one in enumerate(steps):
        now = time.perf_counter()
        if not number or now - shown > 0.2:
            print(f"\r{what} {number + 1} of {len(steps)}, {now - start:.1f} s", end="", flush=True)
            shown = now
        yield one
    print(f"\r{what} {len(steps)} of {len(steps)}, {time.perf_counter() - start:.1f} s")
