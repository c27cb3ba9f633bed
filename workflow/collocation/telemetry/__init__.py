"""What GPU, members and host did while a cell ran, watched from outside the training processes."""
