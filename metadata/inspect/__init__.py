"""Questions about a log: what a record is about, and what happened when. Pure: the tools read the files."""
