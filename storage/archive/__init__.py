"""Archives of metadata logs: one file with the files of several nodes; what they share is stored once."""
