"""Many partition records at once, in numpy."""

MIN_RECORDS = 1 << 62


def apply_batch(engine: object, batch: object) -> bool:
    return False
