"""The peers that run a case of `numbarnn bench`, and whether everybody's results are right.

On a GPU these are cuDNN's algorithms, called directly, and PyTorch, which takes one of them; on the CPU PyTorch and,
for inference in float32, onnxruntime. Each may be at most twice as far as PyTorch from what PyTorch computes in
float64, or as far as `accuracy.floor`. PyTorch itself may err by `accuracy.PEER_TRUST` floors; if it errs by more, it
is no measure for others. Where TF32 is allowed, float16's floor counts: products read as many bits of each number.
"""

from dataclasses import dataclass, field, replace

from numbarnn.bench.cases.passes import FORWARD, WHOLE, quantities
from numbarnn.bench.check import accuracy
from numbarnn.bench.peers import peers
from numbarnn.bench.peers.contender import made_again
from numbarnn.bench.peers.cudnn_peer import PREFIX, cudnn_contenders

TORCH = "torch"
OTHER_FORM = "it is timed as a stack over sequences of one length"
NO_SKIP = "it has no skip input: with an identity for W it would multiply once more"


@dataclass
class LineUp:
    """The peers on one pass of an instance.

    Attributes:
        rivals: contenders whose results are right. left_out: the others -> why they have no times.
        results: PyTorch's, by quantity: what is wanted of everybody. agreement: rows of `compare` of the others.
    """

    rivals: list
    results: dict
    agreement: list = field(default_factory=list)
    left_out: dict = field(default_factory=dict)

    def add(self, contenders, case, truth):
        """Makes rivals of those contenders whose results are right."""
        for contender in contenders:
            rows = compare(case, contender, truth, self.results)
            self.agreement += rows
            if reason := disagreement(rows):
                self.left_out[contender.name] = reason
            else:
                self.rivals.append(contender)


def line_up(instance, truth, what, where):
    """The `LineUp` of a pass (of `passes`); truth: PyTorch's results in float64.

    Where layer 0 has no W, PyTorch computes with an identity for W. Its results are compared, but it gets no time.
    """
    case, train, device = instance.case, what != FORWARD, where.device
    torch = made_again(lambda: peers.torch_contender(instance, train, device))
    wanted, skips = quantities(what, instance.parameters), case.input_mode == "skip"
    returned = torch.results(torch.call())
    found = LineUp([], {name: value for name, value in returned.items() if name in wanted})
    if reason := disagreement(compare(case, torch, truth, found.results, limit_of=largest_trusted)):
        found.left_out[TORCH] = reason
    elif skips:
        found.left_out[TORCH] = NO_SKIP
    else:
        found.rivals.append(torch)
    if device == "cuda":
        contenders, refusals = cudnn_contenders(instance, what)
        found.left_out |= refusals
        found.add(contenders, case, truth)
    elif what == FORWARD and not skips and case.dtype == "float32" and peers.installed("onnx", "onnxruntime"):
        if case.chain or case.lengths:
            found.left_out["onnxruntime"] = OTHER_FORM
        else:
            found.add([made_again(lambda: peers.onnxruntime_contender(instance, where.threads))], case, truth)
    if where.compiled and skips:
        found.left_out[peers.COMPILED] = NO_SKIP
    elif where.compiled and what in WHOLE:
        made, _, reason = attempt(lambda: peers.torch_compiled_contender(instance, train, device), lambda _: ())
        if made:
            found.add([made], case, truth)
        else:
            found.left_out[peers.COMPILED] = reason
    return found


def is_cudnn(name):
    """Whether a contender is one of cuDNN's algorithms."""
    return name.startswith(PREFIX)


def attempt(make, rows_of):
    """(contender, agreement, refusal) of one who asks for times: without a contender where there is a refusal.

    Args:
        make: makes the contender. rows_of: gives rows of `compare` of it.
    """
    contender, agreement = None, []
    try:
        contender = make()
        agreement.extend(rows_of(contender))
        refusal = disagreement(agreement)
    except Exception as exception:
        refusal = said(exception)
    return None if refusal else contender, agreement, refusal


def said(exception):
    """An exception as a refusal."""
    return f"{type(exception).__name__}: {exception}"


# ------------------------------------------------------------------------------------------------------ what is right
def judged_as(case):
    """The case whose floor counts."""
    return replace(case, dtype="float16") if case.allow_tf32 is True and case.dtype == "float32" else case


def limit(case, torch_error):
    return accuracy.limit(judged_as(case), torch_error)


def largest_trusted(case, torch_error):
    """The largest error that PyTorch's own results may have."""
    return accuracy.PEER_TRUST * accuracy.floor(judged_as(case))


def compare(case, contender, truth, torch, limit_of=limit):
    """A contender's results against float64: rows with contender, quantity, error, PyTorch's error, limit, ok, message.

    Args:
        truth: PyTorch's results in float64; torch: in the case's dtype, with the quantities that are wanted.
        limit_of: (case, PyTorch's error) -> the largest error that passes.
    """
    found, rows = contender.results(contender.call()), []
    for quantity, value in torch.items():
        missing = quantity not in found
        message = "no result" if missing else accuracy.shape_problem(found[quantity], value, case.dtype)
        error = float("nan") if message else accuracy.error(found[quantity], truth[quantity])
        row = {"contender": contender.name, "quantity": quantity, "error": error}
        row["torch_error"] = accuracy.error(value, truth[quantity])
        row["limit"] = limit_of(case, row["torch_error"])
        rows.append(row | {"ok": error <= row["limit"], "message": message})
    return rows


def disagreement(agreement):
    """The worst of the rows that are wrong, in words; None where none is."""
    wrong = [row for row in agreement if not row["ok"]]
    if not wrong:
        return None
    worst = max(wrong, key=lambda row: row["error"] if row["error"] == row["error"] else float("inf"))
    how = worst["message"] or f"is {worst['error']:.1e} from float64, more than {worst['limit']:.1e}"
    return f"{worst['contender']}'s {worst['quantity']}: {how}"
