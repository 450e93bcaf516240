"""What a broker's Kafka listeners offer: requests of Kafka's protocol to the core's values and back."""
