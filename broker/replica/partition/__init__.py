"""One replica of one partition: its log, and what it does as leader and as follower."""
