"""Coordinators of groups and transactional ids behind the Kafka listeners."""
