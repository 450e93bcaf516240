"""Where the logs of a fleet lie, what is in them, and how they are read in pieces. No Spark, no records."""
