"""One HTML page about a fleet: charts, tables and words, with nothing to fetch."""
