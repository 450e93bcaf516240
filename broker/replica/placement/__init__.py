"""Which replicas a broker holds, in which directory, and the steps from the present state to the wanted
one."""
