"""Return the random numbers of a training call as NumPy arrays, for comparisons."""

import numpy as np

from numbarnn.common.philox import UNIFORM_SHARE, WORD_MASK, drop_connect_words, dropout_words, noise_words, philox
from numbarnn.layers.private import first_columns
from numbarnn.weights import parameter_name


def dropout_masks(work, dtype, sizes):
    """Return the dropout masks: one array (T, B, D*H) per layer but the last, with elements 0 or 1 / (1 - p).
    work: the `Call` or `ForwardCall`. dtype: name of the masks' dtype. sizes: [layer] -> width of h for callers."""
    masks, problem = [], work.problem
    D = problem.directions
    for layer in range(problem.layers - 1):
        shape = problem.steps, problem.batch, D * problem.output_sizes[layer]
        with work.engine.activate():
            ones = work.engine.from_host(np.ones(shape, problem.dtype))
            if problem.dropping:
                scale = dropout_words(problem.dropout, 0, 0, 0)[0]
                words = work.engine.from_host(dict(work.drawn())["masks"][layer])
                work.engine.dropout(ones, ones, words, scale)
            mask = work.engine.to_host(ones).astype(dtype, copy=False)
            masks.append(mask if mask.shape[2] == D * sizes[layer] else first_columns(mask, sizes[layer], D))
    return masks


def drop_connect_masks(work, dtype):
    """Return name of each R -> mask with the shape of the matrix in a step's product, with elements 0 or 1 / (1 - p).
    The dict is empty if the cell drops no weights. Arguments: see `dropout_masks`."""
    problem, masks, engine = work.problem, {}, work.engine
    drawn = dict(work.drawn()).get("drop_words", ())
    with engine.activate():
        for number, of_gates in enumerate(drawn):
            layer, direction = divmod(number, problem.directions)
            H, P = problem.hidden_sizes[layer], problem.output_sizes[layer] // problem.cell.heads
            mask = engine.from_host(np.ones((problem.cell.num_ah * H, P), problem.dtype))
            for gate, (words, rate) in enumerate(zip(of_gates, problem.cell.drop_connect, strict=True)):
                gate_mask = mask[gate * H : (gate + 1) * H]
                engine.dropout(gate_mask, gate_mask, engine.from_host(words), drop_connect_words(rate, 0, 0, 0, 0)[0])
            masks[parameter_name("R", layer, direction)] = engine.to_host(mask).astype(dtype, copy=False)
    return masks


def noise(work):
    """Return the cell's random numbers in a `ForwardCall`: one array (D, T, B, N, H) per layer, N numbers per unit and
    step."""
    problem = work.problem
    if not problem.cell.noise:
        return []
    places = problem.layers * problem.directions
    words = noise_words(work.seed, places, work.number).reshape(problem.layers, problem.directions, -1)
    return [
        np.stack([_noise_of_place(work, H, one) for one in rows])
        for H, rows in zip(problem.hidden_sizes, words, strict=True)
    ]


def _noise_of_place(work, hidden, words):
    """Return the numbers of one layer and direction, (T, B, N, H); words: (6,) uint64, see `philox.noise_words`."""
    problem, steps, batch = work.problem, work.problem.steps, work.problem.batch
    kinds = problem.cell.noise
    position = np.arange(batch * hidden, dtype=np.uint64)
    key_0, key_1, stream, call = words[:4]
    drawn, before = np.empty((steps, batch, len(kinds), hidden), problem.state_dtype), {True: 0, False: 0}
    for number, kind in enumerate(kinds):
        group, lane = divmod(before[kind.each_step], 4)
        before[kind.each_step] += 1
        when = np.arange(steps, dtype=np.uint64)[:, None] if kind.each_step else WORD_MASK
        random = philox(position, when, stream + np.uint64(group), call, key_0, key_1)[lane]
        if kind.uniform:
            kept = (random >> np.uint64(8)) * UNIFORM_SHARE + UNIFORM_SHARE / 2
        else:
            kept = np.where(random >= np.uint64(kind.threshold), kind.kept, 0.0)
        drawn[:, :, number] = kept.reshape(-1, batch, hidden)
    return drawn
