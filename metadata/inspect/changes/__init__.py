"""Records as changes: the state before and after each record, and its description in words."""
