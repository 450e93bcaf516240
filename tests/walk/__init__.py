"""The ways through the house, taken from running code: which files one request passes, in order."""
