"""The admin client: finds the active controller and asks it."""
