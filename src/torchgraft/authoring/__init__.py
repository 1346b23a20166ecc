"""Takes an author from nothing to a package with an operator, and from there to a wheel that is checked."""
