"""Who may do what: access control entries of an image, asked. Knows no request and no connection."""
