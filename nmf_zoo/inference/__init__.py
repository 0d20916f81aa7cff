"""The engines, by the data that they are for, and the table of all of them: :mod:`nmf_zoo.inference.registry`."""
