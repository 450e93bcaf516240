"""A client of Kafka's protocol for this program's own use: connections to nodes, requests from the table."""
