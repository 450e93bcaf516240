"""The APIs of a broker's Kafka listeners: from requests of Kafka's protocol to the core's values and back."""
