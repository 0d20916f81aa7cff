"""What several engines are made of: starts, sides, layout of the data, sources, priors and whether they are proper."""
