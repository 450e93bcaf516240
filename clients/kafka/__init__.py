"""A client of Kafka's protocol: connections, login, and the search for the node that answers."""
