"""How every engine runs: what an engine is, chains and restarts, threads, progress, checkpoints, traces."""
