"""A client of Kafka's protocol for this program's own use: one connection to one node, requests by the
table."""
