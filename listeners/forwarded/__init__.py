"""APIs that the active controller answers, on whichever node they arrive."""
