"""A process that answers questions of one part: `python -m numbarnn.bench.prove.child PART ASKED`.

    in     {"question": name}                                    a line each, until the end of the input
    out    {"question": name, "outcome": "ok", ...}              a line each

ASKED is a `parts.Asked` as JSON. What anybody prints meanwhile goes to the error stream.
"""

import json
import os
import sys
import traceback

from numbarnn.bench import report
from numbarnn.bench.prove import results
from numbarnn.bench.prove.parts import BY_NAME, Asked


def main(name, asked):
    """Answers until nobody asks any more."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        part, asked = BY_NAME[name], Asked(*json.loads(asked))
        for line in sys.stdin:
            question = json.loads(line)["question"]
            print(json.dumps(report.plain(answer(part, question, asked)), allow_nan=False), file=out, flush=True)


def answer(part, question, asked):
    """The answer to a question, as the parent keeps it; "broken" where the process had better not go on."""
    try:
        found = part.answer(question, asked)
    except report.CannotRun as reason:
        return {"question": question, "outcome": results.CANNOT, "message": str(reason)}
    except Exception:
        # After some errors a GPU does nothing more for the process.
        return {"question": question, "outcome": results.FAILED, "message": traceback.format_exc(), "broken": True}
    outcome = results.OK if found.pop("ok") else results.WRONG
    return {"question": question, "outcome": outcome, **found}


if __name__ == "__main__":
    main(*sys.argv[1:])
