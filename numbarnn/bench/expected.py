"""What a case's results should be, by the float64 reference, and what its peers make of it: PyTorch and cuDNN."""

from dataclasses import dataclass

import numpy as np

from numbarnn.bench import accuracy, cudnn_peer, peers
from numbarnn.bench.cases import PEERS_CELLS
from numbarnn.bench.cudnn_peer import Refused


@dataclass(frozen=True)
class Expectation:
    """Results by quantity, of the reference (`truth`) and of the peers; None where a peer does not run the case.

    cudnn_refusal   why cuDNN does not, in its words; None where it was not asked
    """

    truth: dict
    torch: dict | None = None
    cudnn: dict | None = None
    cudnn_refusal: str | None = None

    def errors(self, quantity):
        """{"torch_error": ..., "cudnn_error": ...} of a quantity; None where the peer gives none."""
        found = {}
        for name, results in (("torch_error", self.torch), ("cudnn_error", self.cudnn)):
            known = results is not None and quantity in results
            found[name] = accuracy.error(results[quantity], self.truth[quantity]) if known else None
        return found

    def after(self, earlier, parameters):
        """With the parameters' gradients of an earlier backward pass, an `Expectation`, added to its own."""

        def total(own, others):
            if own is None or others is None:
                return None
            return {name: value + others[name] if name in parameters else value for name, value in own.items()}

        pairs = ((getattr(self, name), getattr(earlier, name)) for name in ("truth", "torch", "cudnn"))
        return Expectation(*(total(*pair) for pair in pairs), self.cudnn_refusal)


class Expected:
    """The expectations of one problem: computed once for all schedules, and once for each set of dropout masks.

    with_cudnn   whether cuDNN is asked as well
    """

    def __init__(self, problem, with_cudnn=False):
        self.problem, self.with_cudnn = problem, with_cudnn
        self._known = []  # pairs of masks and expectation

    def results(self, masks=None):
        """The `Expectation` with these masks (None: nothing is dropped)."""
        for known, expectation in self._known:
            if same_masks(known, masks):
                return expectation
        expectation = self._expectation(masks)
        self._known.append((masks, expectation))
        return expectation

    def _expectation(self, masks):
        problem = self.problem
        truth = reference_results(problem, masks)
        has_peers = problem.case.cell in PEERS_CELLS
        torch = peers.torch_results(problem, masks) if has_peers and peers.installed("torch") else None
        cudnn = refusal = None
        if self.with_cudnn:
            try:
                cudnn = cudnn_peer.cudnn_results(problem, masks)
            except Refused as reason:
                refusal = str(reason)
        return Expectation(truth, torch, cudnn, refusal)

    def notes(self):
        """What there is to tell about the peers: pairs of a name and a sentence."""
        found = []
        for _, expectation in self._known:
            if expectation.cudnn_refusal is not None:
                found.append(("cuDNN", f"refuses: {expectation.cudnn_refusal}"))
            for name, key in (("PyTorch", "torch_error"), ("cuDNN", "cudnn_error")):
                errors = {quantity: expectation.errors(quantity)[key] for quantity in expectation.truth}
                wrong = {q: e for q, e in errors.items() if e is not None and self._trusted(e) is None}
                if wrong:
                    list_of = ", ".join(f"{quantity} {error:.1e}" for quantity, error in wrong.items())
                    found.append((name, f"computes something else, as far from float64: {list_of}"))
        return list(dict.fromkeys(found))

    def _trusted(self, error):
        return accuracy.trusted(self.problem.case, error)


def same_masks(some, others):
    """Whether two lists of masks are equal; None equals None."""
    if some is None or others is None:
        return some is others
    return all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))


def reference_results(problem, masks=None):
    """Results of `numbarnn.reference`, forward and backward, by quantity; forward alone where the case is.

    Raises ArithmeticError where one holds a NaN that the case does not bring with it.
    """
    from numbarnn import reference

    case = problem.case
    forward = reference.forward(
        case.cell,
        problem.x,
        problem.parameters,
        problem.h0,
        problem.c0,
        masks=masks,
        lengths=problem.lengths,
        resets=problem.resets,
        cell_clip=case.cell_clip,
        clip_propagate_nan=case.clip_propagate_nan,
        padding_value=case.padding_value,
    )
    results = {"y": forward.y, "hy": forward.hy}
    results |= {"cy": forward.cy} if case.cell == "lstm" else {}
    if not case.forward_only:
        gradients = reference.backward(forward, problem.dy, problem.dhy, problem.dcy)
        results |= {"dx": gradients.dx, "dhx": gradients.dhx} | gradients.params
        results |= {"dcx": gradients.dcx} if case.cell == "lstm" else {}
    for quantity, value in results.items():
        if not case.nan_state and np.isnan(accuracy.flat(value)).any():
            raise ArithmeticError(f"the float64 reference has a NaN in {quantity}")
    return results
