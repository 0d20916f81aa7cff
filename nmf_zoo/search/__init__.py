"""The search for the best mode: many local fits, each from a random start or from what earlier ones found."""
