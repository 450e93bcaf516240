"""Listeners that speak Kafka's protocol: frames, order of answers, limits. Knows no API but ApiVersions."""
