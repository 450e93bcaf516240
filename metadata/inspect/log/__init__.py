"""A metadata log as the tools read it: files, batches, places, clock, and states on the way."""
