"""What is trained: one training process, its models, inputs and datasets."""
