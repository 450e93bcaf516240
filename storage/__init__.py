"""Record batches, segmented log, leader-epoch table, snapshot files and the Disk interface.

Owns bytes on disk. Knows no metadata record: a record value is bytes here.
"""
