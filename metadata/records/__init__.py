"""Metadata records: types, the schema table, the codec generated from it, and batches of them."""
