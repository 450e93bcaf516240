"""Metrics: the catalogue, what is counted, and the page that is scraped."""
