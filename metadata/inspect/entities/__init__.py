"""A cluster's entities by path: their fields, histories and differences."""
