"""How repairs are worded."""


def count(number: int, what: str) -> str:
    """\"1 event\", \"2,000 events\"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
