"""Record batches in message format 2: parsing, checking and making them."""
