"""`numbarnn report FILE...`: results of `numbarnn bench` as one page with tables and pictures, a section each.

Without a file it shows the newest results of each device among those that come with numbarnn. `--against` compares the
first file with a former result of the same problems. It compares ratios to peers, which ran beside numbarnn both times:
a slower machine slows both, and is not taken for slower code.
"""

import webbrowser
from pathlib import Path

from numbarnn.bench import console
from numbarnn.bench.report import page
from numbarnn.bench.report.rows import SLOWER, changes, result_of
from numbarnn.bench.speed import record

RECORDED = Path(record.__file__).parents[1] / "results"


def add_arguments(parser):
    about = (
        "what `numbarnn bench --json FILE` wrote, one or several; default: of the results that come with numbarnn the "
    )
    about += "newest of each device"
    existing = console.existing_file("a file that numbarnn bench --json wrote")
    parser.add_argument("files", nargs="*", type=existing, metavar="FILE", help=about)
    where = parser.add_argument
    where("--html", type=console.json_path, default=Path("numbarnn_report.html"), metavar="FILE",
          help="the page to write; default numbarnn_report.html")  # fmt: skip
    where("--open", action="store_true", help="show the page in a browser")
    about = f"a former result: say what became slower, by more than {SLOWER - 1:.0%}%; exit status 1 if something did"
    where("--against", type=existing, metavar="FILE", help=about)


def run(args):
    """Writes the page; returns 1 where something became slower than in the former result."""
    results = [read(file, option="FILE") for file in args.files] or newest()
    if args.against:
        return say_changes(read(args.against, option="--against"), results[0])
    text = page.html(results)
    for result in results:
        console.say(f"{result.name}: {page.verdict(result)}")
    console.write_bytes(args.html, text.encode())
    console.say(f"written: {args.html}")
    if args.open:
        webbrowser.open(args.html.resolve().as_uri())
    return 0


def newest():
    """The `rows.Result`s that come with numbarnn, of each device and what was timed there the newest."""
    found = {}
    for file, one in sorted(((file, record.read(file)) for file in RECORDED.glob("*.json")), key=_date):
        if one:
            timed = frozenset((row["cell"], row["dtype"], row["what"]) for row in one["results"])
            found.pop((one["device_name"], timed), None)
            found[one["device_name"], timed] = result_of(file.stem, one)
    return [*found.values()][::-1]


def _date(pair):
    return pair[1]["date"] if pair[1] else ""


def read(file, option):
    """The `rows.Result` of a file that the user named by an `option`; an error where it holds something else."""
    no_result = f"{option} {file} is no result of numbarnn bench"
    try:
        if found := record.read(file):
            return result_of(Path(file).stem, found)
    except Exception as error:  # whatever a file may hold that numbarnn bench has not written
        raise console.WrongArguments(f"{no_result}: {type(error).__name__}: {error}") from error
    raise console.WrongArguments(no_result)


def say_changes(former, now):
    """The table of ratios before and now; returns 1 where a trusted one was lost."""
    found = changes(former, now) if former.record["device"] == now.record["device"] else []
    if not found:
        raise console.WrongArguments(
            f"--against {former.name} and {now.name} have no device, problem and peer in common: compare results "
            "of one machine"
        )
    rows = [
        [str(one.key), one.peer, f"{one.before:.2f}", f"{one.now:.2f}", f"{one.factor:.2f}",
         "SLOWER" if one.lost else "ok" if one.trusted else "in doubt"]
        for one in found
    ]  # fmt: skip
    numbers = ["before", "now", "now / before"]
    title = f"Ratios to peers of the same run: {former.name} before, {now.name} now"
    console.print_table(title, ["problem", "peer", *numbers, "result"], rows, right=numbers)
    lost, doubted = sum(one.lost for one in found), sum(not one.trusted for one in found)
    console.say(f"numbarnn report: {lost} of {len(found)} slower; {doubted} in doubt")
    return int(lost > 0)
