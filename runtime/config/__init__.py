"""A node's configuration file: keys, parsing, checks, and the page about them."""
