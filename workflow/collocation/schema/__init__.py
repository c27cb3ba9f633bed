"""What a person may write: config, catalogue and studies, and how they are read."""
