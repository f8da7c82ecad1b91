"""A process that answers questions of one part: `python -m numbarnn.bench.prove.child PART ASKED`.

    in     {"question": name}                                    a line each, until the end of the input
    out    {"question": name, "outcome": "ok", "compiling_s": seconds that it spent compiling, ...}    a line each

ASKED is a `parts.Asked` as JSON. Whatever else is printed goes to the error stream. When the process that asks is gone,
even while a question is answered, this one ends with all that it has started, so that nothing keeps a GPU busy.
"""

import json
import os
import queue
import signal
import sys
import threading
import traceback
from contextlib import suppress

from numbarnn.bench import console
from numbarnn.bench.prove import results
from numbarnn.bench.prove.parts import BY_NAME, Asked
from numbarnn.common import notice


def main(name, asked):
    """Answers until nobody asks any more."""
    todo = queue.SimpleQueue()
    threading.Thread(target=listen, args=(todo,), daemon=True).start()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        part, asked = BY_NAME[name], Asked(*json.loads(asked))
        with suppress(Exception):  # an answer that takes it tells what is wrong
            part.load()
        while True:
            question, before = todo.get(), notice.seconds()
            found = answer(part, question, asked) | {"compiling_s": notice.seconds() - before}
            print(json.dumps(console.plain(found), allow_nan=False), file=out, flush=True)


def listen(todo):
    """Puts questions into a queue as they come; after the last one ends the process, and others of its group."""
    for line in sys.stdin:
        todo.put(json.loads(line)["question"])
    if os.getpgrp() == os.getpid():  # as `conduct.Child` starts it
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def answer(part, question, asked):
    """The answer to a question, as the parent keeps it; "broken" where the process had better not go on."""
    try:
        found = part.answer(question, asked)
    except console.CannotRun as reason:
        return {"question": question, "outcome": results.CANNOT, "message": str(reason)}
    except Exception:
        # After some errors a GPU does nothing more for the process.
        return {"question": question, "outcome": results.FAILED, "message": traceback.format_exc(), "broken": True}
    outcome = results.OK if found.pop("ok") else results.WRONG
    return {"question": question, "outcome": outcome, **found}


if __name__ == "__main__":
    main(*sys.argv[1:])
