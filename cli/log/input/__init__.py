"""What the log commands read: paths, archives, several nodes, a live quorum; and their shared options."""
