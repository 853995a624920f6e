"""What a run leaves behind: records, checkpoints, and what identifies a run."""
