"""New logs from damaged ones: repair of one log, salvage of a quorum."""
