"""The logs of several nodes side by side, and as one log."""
