"""What the cores of a controller and a broker are configured with, as values that `config` fills."""
