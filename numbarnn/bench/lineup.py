"""The peers that run a case of `numbarnn bench`, and whether all results are right.

On a GPU the peers are cuDNN's algorithms, called directly, and PyTorch, which chooses one of them. On the CPU they are
PyTorch and, for inference in float32, onnxruntime. Errors are measured against PyTorch in float64. The limit is twice
PyTorch's error, or `accuracy.floor`. PyTorch and cuDNN may err by `accuracy.PEER_TRUST` floors: cuDNN's persistent
algorithms err by 1.7 in float32. TF32 has float16's floor, as its products read as many bits.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from numbarnn.bench import accuracy
from numbarnn.bench.peers import onnx_peer, torch_peer
from numbarnn.bench.peers.contender import installed, made_again
from numbarnn.bench.peers.cudnn_peer import cudnn_contenders
from numbarnn.bench.shapes import FORWARD, quantities

OTHER_FORM = "it is timed over sequences of one length"
NO_SKIP = "it has no skip input: with an identity for W it would multiply once more"


def _judged_as(case):
    return replace(case, dtype="float16") if case.allow_tf32 is True and case.dtype == "float32" else case


def limit(case, torch_error):
    """Return the largest error that passes."""
    return accuracy.limit(_judged_as(case), torch_error)


def largest_trusted(case, torch_error):
    """Return the largest error that PyTorch's own results may have."""
    return accuracy.PEER_TRUST * accuracy.floor(_judged_as(case))


@dataclass
class LineUp:
    """The peers on one pass of a case.

    results: PyTorch's, by quantity; every contender must have these. truth: PyTorch's in float64.
    """

    case: object
    truth: dict
    results: dict
    rivals: list = field(default_factory=list)  # contenders whose results are right
    agreement: list = field(default_factory=list)  # rows of `compare` of others than PyTorch
    left_out: dict = field(default_factory=dict)  # name -> why it has no times
    limit_of: Callable = limit  # (case, PyTorch's error) -> the largest one that passes

    @classmethod
    def of_torch(cls, case, truth, what, torch, parameters=(), lacks=""):
        """Start with PyTorch, which is a rival if its results are right. lacks: why PyTorch must not be timed."""
        wanted = quantities(what, parameters)
        line = cls(case, truth, {name: value for name, value in torch.results(torch.call()).items() if name in wanted})
        if reason := disagreement(line.compare(torch, largest_trusted)) or lacks:
            line.left_out[torch.name] = reason
        else:
            line.rivals.append(torch)
        return line

    def compare(self, contender, limit_of=None):
        """Compare a contender's results with float64; return rows: contender, quantity, error, torch_error, limit,
        ok, message."""
        found, rows = contender.results(contender.call()) if self.results else {}, []
        for quantity, value in self.results.items():
            missing = quantity not in found
            message = "no result" if missing else accuracy.shape_problem(found[quantity], value, self.case.dtype)
            error = float("nan") if message else accuracy.error(found[quantity], self.truth[quantity])
            torch_error = accuracy.error(value, self.truth[quantity])
            row = {"contender": contender.name, "quantity": quantity, "error": error, "torch_error": torch_error}
            row["limit"] = (limit_of or self.limit_of)(self.case, torch_error)
            rows.append(row | {"ok": error <= row["limit"], "message": message})
        return rows

    def add(self, name, make, limit_of=None):
        """Make a contender and add it to the rivals if its results are right, else to those left out."""
        made, rows, reason = attempt(make, partial(self.compare, limit_of=limit_of))
        self.agreement += rows
        if made:
            self.rivals.append(made)
        else:
            self.left_out[name] = reason


def line_up(instance, truth, what, where):
    """Return the `LineUp` of a pass. truth: PyTorch's results in float64.

    If layer 0 has no W, PyTorch multiplies by an identity: its results are compared, but its time is not taken."""
    case, train, device, skips = instance.case, what != FORWARD, where.device, instance.case.input_mode == "skip"
    torch = made_again(lambda: torch_peer.torch_contender(instance, train, device))
    line = LineUp.of_torch(case, truth, what, torch, instance.parameters, NO_SKIP * skips)
    if device == "cuda":
        contenders, refusals = cudnn_contenders(instance, what)
        line.left_out |= refusals
        for contender in contenders:
            line.add(contender.name, lambda contender=contender: contender, largest_trusted)
    elif not train and not skips and case.dtype == "float32" and installed("onnx", "onnxruntime"):
        if case.lengths:
            line.left_out[onnx_peer.NAME] = OTHER_FORM
        else:
            make = lambda: onnx_peer.onnxruntime_contender(instance, where.threads)  # noqa: E731
            line.add(onnx_peer.NAME, lambda: made_again(make))
    return line


def attempt(make, rows_of):
    """Make and compare a contender. Return (contender, rows of `LineUp.compare`, None), or (None, rows, why not).

    make: returns the contender. rows_of: f(contender) -> rows."""
    contender, agreement = None, []
    try:
        contender = make()
        agreement.extend(rows_of(contender))
        refusal = disagreement(agreement)
    except Exception as exception:
        refusal = said(exception)
    return None if refusal else contender, agreement, refusal


def said(exception):
    return f"{type(exception).__name__}: {exception}"


def disagreement(agreement):
    """Describe the worst wrong row; None if all are right."""
    wrong = [row for row in agreement if not row["ok"]]
    if not wrong:
        return None
    worst = max(wrong, key=lambda row: row["error"] if row["error"] == row["error"] else float("inf"))
    how = worst["message"] or f"is {worst['error']:.1e} from float64, more than {worst['limit']:.1e}"
    return f"{worst['contender']}'s {worst['quantity']}: {how}"
