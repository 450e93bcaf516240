"""Log compaction: what is cleaned, which records stay, and the segments that replace the old ones."""
