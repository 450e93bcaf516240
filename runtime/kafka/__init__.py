"""Listeners of Kafka's protocol: frames, order of responses, limits. Knows no API but ApiVersions."""
