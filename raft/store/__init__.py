"""A replica's directory on disk: what lies where, how it is made, opened and trimmed."""
