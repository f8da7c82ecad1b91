"""What the pages of commands have in common: each is one file, which refers to nothing outside of it."""

import io
from html import escape

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 76em; padding: 0 1em; color: #222; }
table { border-collapse: collapse; font-size: 13px; margin: 0.5em 0 1.5em; }
th { text-align: left; border-bottom: 2px solid #888; padding: 2px 10px 2px 0; }
td { border-bottom: 1px solid #ddd; padding: 2px 10px 2px 0; vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
.verdict { font-size: 18px; }
svg { max-width: 100%; height: auto; }
.table { overflow-x: auto; }
@media (prefers-color-scheme: dark) {
  :root { color-scheme: dark; }
  body { background: #0f141a; color: #e6edf3; }
  td { border-color: #38414c; }
  svg { filter: invert(0.93) hue-rotate(180deg); }
}
"""


def document(title, body, style, script=""):
    """A page of a body (HTML), as text; the script runs when all of it is there."""
    scripts = f"<script>\n{script}</script>\n" if script else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"/>\n<title>{escape(title)}</title>\n'
        f"<style>{style}</style>\n</head>\n<body>\n{body}\n{scripts}</body>\n</html>\n"
    )


def svg(figure):
    """A matplotlib figure as an SVG element, for the body of a page; the same figure gives the same text."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = stream.getvalue()
    return text[text.index("<svg") :]


def table(columns, rows, right=()):
    """A table as HTML; `right`: headings of columns of numbers, aligned to the right."""
    numbers = {i for i, column in enumerate(columns) if column in right}

    def cell(i, value, tag):
        kind = ' class="number"' if i in numbers else ""
        return f"<{tag}{kind}>{escape(str(value))}</{tag}>"

    head = "".join(cell(i, column, "th") for i, column in enumerate(columns))
    lines = ['<div class="table"><table>', *([f"<tr>{head}</tr>"] if columns else [])]
    lines += ["<tr>" + "".join(cell(i, value, "td") for i, value in enumerate(row)) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table></div>"])


def about(found):
    """The table of a machine and its software, from `info.collect`, as HTML."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items() if version)
    rows = [
        ["date", found["date"]],
        ["numbarnn", f"{found['numbarnn']}, commit {found['commit']}"],
        ["CPU", f"{found['cpu']['model']}, {found['cpu']['cores']} cores"],
        *(["GPU", gpu["name"]] for gpu in found["gpus"]),
        ["driver", found["driver"] or "none"],
        ["versions", f"Python {found['python']}, {versions}"],
    ]
    return table((), rows)
