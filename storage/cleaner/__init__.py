"""Log compaction: what is cleaned, which records stay, and the segments that take the old ones' places."""
