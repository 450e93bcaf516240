"""What a broker's replicas ask the active controller for: ISR changes, directories, producer ids."""
