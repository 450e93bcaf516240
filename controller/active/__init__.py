"""The active controller: decides one request after another, and carries out work that takes several
batches."""
