"""The evidence log p(X) with the factors integrated out: what a method is, and one file for each."""
