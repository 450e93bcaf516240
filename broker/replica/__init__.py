"""A broker's replicas of partitions: what leads, what follows, what may be read, and in which directory.

Pure, as the rest of the broker's core: requests and completions come in, answers and work for disks, peers
and the controller go out as values.
"""
