"""What happened, summed up on one screen."""
