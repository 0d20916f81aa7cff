"""What a model or its posterior says of data: simulation, predictive draws, the pointwise log-likelihood."""
