"""Metadata records and their codec, the image, the single interpreter `replay`, and what is derived from it.

Pure: no clock, no files, no randomness of its own.
"""

if __name__ == "metadata":
    raise ImportError("import metaquorum.metadata: this folder is a part of the package metaquorum")
