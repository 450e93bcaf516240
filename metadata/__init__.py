"""Metadata records and their codec, the image, the one interpreter `replay`, and what follows from it.

Pure: no clock, no files, no randomness of its own.
"""
