"""What users call on a model: sample, fit, project."""
