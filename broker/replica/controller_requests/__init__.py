"""What a broker's replicas request from the active controller: ISR changes, directories, producer ids."""
