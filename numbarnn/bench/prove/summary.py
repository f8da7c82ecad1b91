"""What `numbarnn prove` has answered, as text: every part with its figures; what was not answered, and why."""

from collections import Counter

from numbarnn.bench.prove.parts import BY_NAME
from numbarnn.bench.prove.results import CANNOT, DONE, OK, OUTCOMES

MESSAGES_TOLD = 4  # different ones of a part
LETTERS_TOLD = 1500  # of each: its end, which says most


def text(found, names):
    """All of it: of the parts with these names, found: part's name -> its data, as `results.read_all`."""
    lines = []
    for data in list(found.values())[:1]:
        commit = f"commit {data['commit']}" if data["commit"] else "commit unknown"
        source = f"{commit}{', changed' if data['clean'] is False else ''}, code {data['kernels']}"
        versions = data["environment"]["versions"]
        shown = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        kept = f"; kernels of the compiler {data['toolchain']!r}" if data.get("toolchain") else ""
        lines.append(f"numbarnn prove on {data['device_name']}, driver {data['driver']}; {source}{kept}; {shown}")
    for name in names:
        lines.append("")
        if name not in found:
            lines.append(f"{name}: NOT ASKED ({BY_NAME[name].about})")
            continue
        data = found[name]
        lines += [headline(name, data), *(f"  {line}" for line in BY_NAME[name].told(data["answers"]))]
        lines += messages(data["answers"])
    return "\n".join(lines)


def headline(name, data):
    """A part in one line: how far it came, and what became of its questions."""
    counts = Counter(answer["outcome"] for answer in data["answers"])
    became = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
    left = data.get("left") or 0
    compiling = sum(answer.get("compiling_s", 0) for answer in data["answers"])
    spent = f"{data['seconds']:.0f} s" + (f", all processes compiled for {compiling:.0f} s" if compiling >= 1 else "")
    state = DONE if data["outcome"] == DONE else f"CUT OFF, {left} questions not asked yet"
    return f"{name} ({BY_NAME[name].about}): {state}; {became or 'no answer'}; {spent}"


def messages(answers):
    """The messages of answers that are not as they should be, each once with the questions that had it."""
    asked_by = {}
    for answer in answers:
        if answer["outcome"] != OK and answer.get("message"):
            asked_by.setdefault((answer["outcome"], answer["message"].strip()), []).append(answer["question"])
    lines = []
    for (outcome, message), questions in list(asked_by.items())[:MESSAGES_TOLD]:
        others = f" and {len(questions) - 1} more" if len(questions) > 1 else ""
        lines.append(f"  {'not here' if outcome == CANNOT else outcome}: {questions[0]}{others}")
        cut = message if len(message) <= LETTERS_TOLD else f"... {message[-LETTERS_TOLD:]}"
        lines += [f"    {line}" for line in cut.splitlines()]
    if len(asked_by) > MESSAGES_TOLD:
        lines.append(f"  {len(asked_by) - MESSAGES_TOLD} more messages stand in the part's file")
    return lines
