"""A metadata log as the tools read it: files, batches, places, clock, and the states along the way."""
