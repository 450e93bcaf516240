"""The active controller: decides one request after another, and works through what takes several batches."""
