"""What an installation needs: bounds that hold, wheels for every platform, and its size.

`make lowest`, `make wheels` and `make size` run these; none of them is part of `make test`.
"""
