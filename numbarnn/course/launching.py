"""Starting a student's kernel: on a GPU, or all blocks at once in the simulator."""

import numpy as np


def launch(kernel, grid, block, *arguments, seed=0):
    """Run a `@cuda.jit` kernel on NumPy arrays, which it writes in place.

    In Numba's own simulator `kernel[grid, block](...)` runs one block after another: blocks that wait for each other
    never end. Here all of them are there at once, on a GPU by a cooperative launch; without one in the library's
    simulator, where threads take turns in a random order.

    Args:
        kernel: what `@cuda.jit` made of a function.
        grid: number of blocks: an int, or (x, y) or (x, y, z).
        block: threads of each block, an int or a tuple as `grid`.
        arguments: NumPy arrays; ints and floats are handed over as int32 and float32.
        seed: of the simulator's order. A GPU has its own order.

    Raises:
        RuntimeError: in the simulator, a thread raised an error (named with block and thread), or waits for ever.
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
    """Python's numbers as those of a kernel."""
    if isinstance(argument, int):
        return np.int32(argument)
    return np.float32(argument) if isinstance(argument, float) else argument
