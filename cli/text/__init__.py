"""How answers look: tables, text and JSON."""
