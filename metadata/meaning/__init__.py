"""What each record means: from a record to edits of an ImageBuilder."""
