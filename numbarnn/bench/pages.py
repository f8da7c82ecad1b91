"""What pages that commands write have in common: one file, which refers to nothing outside of it."""

import io
from html import escape


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
