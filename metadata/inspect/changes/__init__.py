"""Records as changes: what each found and what it left behind, and the words for it."""
