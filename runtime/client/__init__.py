"""The admin client: finds the active controller and calls it."""
