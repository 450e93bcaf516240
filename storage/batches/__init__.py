"""Record batches in message format 2: parse, check, make."""
