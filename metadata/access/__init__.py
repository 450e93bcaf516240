"""Authorization: evaluates the access control entries of an image. Knows no request and no connection."""
