"""Controllers that vote: requests that change them, and a controller's own request to become one
(KIP-853)."""
