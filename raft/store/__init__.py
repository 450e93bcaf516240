"""A replica's directory on disk: its layout, and how it is created, opened and trimmed."""
