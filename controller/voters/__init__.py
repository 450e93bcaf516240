"""Controllers that vote: requests that change them, and a controller that asks to become one (KIP-853)."""
