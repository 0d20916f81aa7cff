"""What is done with models and results: evidence, marginal likelihood, choice of the rank."""
