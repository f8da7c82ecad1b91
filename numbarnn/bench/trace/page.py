"""A record as one page with a player: `page.html`, `player.css` and `player.js`, and the record as JSON in it."""

import json
from html import escape
from pathlib import Path
from string import Template

from numbarnn.bench import pages
from numbarnn.bench.trace.record import KINDS, as_json

FOLDER = Path(__file__).parent
LETTERS_SHOWN = 90  # of an error, at first
SCALES = {  # what a time of the record is
    "turns": "Time is counted in turns: in the simulator all threads of the grid take turns, one at a time. Turns show "
    "who comes before whom; how long something takes on a GPU they do not show.",
    "steps": "Time is counted in steps of one layer, as the plan estimates it: nothing ran.",
    "ns": "Time is that of the device's clock, in nanoseconds.",
}


def html(record):
    """The page as text."""
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in record.about)
    data = json.dumps(as_json(record), separators=(",", ":"), allow_nan=False)
    kinds = [kind for kind in KINDS if kind != "wait" and any(event.kind == kind for event in record.events)]
    body = Template((FOLDER / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(record.title),
        facts=f'<dl class="facts">{facts}</dl>' if facts else "",
        scale=escape(SCALES[record.unit]),
        of=record.of,
        directions=record.directions,
        lane=record.of[:-1],
        meanings="".join(f"<div><dt>{kind}</dt><dd>{escape(KINDS[kind])}</dd></div>" for kind in kinds),
        error=failure(record.error) if record.error else "",
        data=data.replace("<", "\\u003c"),  # within a <script>: nothing in it looks like the element's end
    )
    style, script = ((FOLDER / name).read_text(encoding="utf-8") for name in ("player.css", "player.js"))
    return pages.document(f"numbarnn trace: {record.title}", body, style, script)


def failure(error):
    """How the run ended, as HTML: the first words, the rest on demand."""
    first = error if len(error) <= LETTERS_SHOWN else error[:LETTERS_SHOWN].rpartition(" ")[0] + " …"
    what = "What stands in a red frame below never got what it waits for." if "livelock" in error else ""
    return (
        f'<details class="error"><summary role="alert">The run failed: {escape(first)} {what}</summary>'
        f"<p>{escape(error)}</p></details>"
    )
