"""A broker's replicas of partitions: leaders, followers, what may be read, and in which directory each is.

Pure, like the rest of the broker's core: requests and completions come in; answers and work for disks, peers
and the controller go out as values.
"""
