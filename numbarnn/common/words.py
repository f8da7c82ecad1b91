"""Numbers in sentences."""


def counted(number, noun):
    """Return a count as text, such as "1 block" and "2 blocks"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
