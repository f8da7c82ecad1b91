"""Which copies persistent launches make unnecessary: each would be a node of the call's graph of its own.

Launches read initial states from the call's arrays and write final ones to its results; the last launch of a forward
pass fills the results of a call that failed with NaN (`numbarnn.kernels.persistent.ends`).
"""


def states_by_launches(problem):
    """Whether forward launches read initial and write final states: not of cells with stages, nor of projections."""
    return not problem.projection and not problem.cell.stages


def private_by_launches(problem):
    """Whether that holds for private states too: segments of a call hand these on unrounded, in another dtype."""
    return states_by_launches(problem) and not problem.is_segment


def results_by_launches(problem):
    """Whether forward launches write all results: no copy of y or of all states follows, and each result is one
    array."""
    follows = problem.batch_major or problem.padded or problem.keeps_states
    return private_by_launches(problem) and not follows and len({*problem.output_sizes, *problem.hidden_sizes}) == 1


def spared(problem, backward):
    """Return how many nodes of a pass there are no more: copies or fills of initial states, copies of final ones, the
    fill of results with NaN, and in inference the clearing of the error flag."""
    if backward:
        return 0
    states = states_by_launches(problem) + (private_by_launches(problem) and problem.cell.num_private > 0)
    at_the_end = results_by_launches(problem) * (1 if problem.training else 2)
    return 2 * problem.layers * problem.directions * states + at_the_end
