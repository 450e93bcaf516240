"""Records and images as JSON and as text."""
