"""What a run leaves behind: groups of InferenceData, draws on disk, moments, components, checkpoints.

``groups`` makes the groups of PyMC from arrays, and everything may use it. The other files stand above the engines:
``trace_storage`` chooses where draws go, ``stores`` takes them to Zarr, ``posterior`` reads them as their model sees
them, ``means`` reads moments, ``checkpoints`` opens and closes a saved run, ``loading`` reads files.
"""
