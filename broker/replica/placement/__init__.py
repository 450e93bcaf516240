"""Which replicas a broker holds, in which directory, and the steps from what is there to what should be."""
