"""What bounds the listeners: connections, the memory of requests, and that of answers."""
