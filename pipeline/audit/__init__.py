"""What the tables of the pipeline say about a fleet: facts, findings and their severity."""
