"""The things of a cluster by path: their fields, histories and differences."""
