"""The contract between the conductor of a cell and the processes of its jobs (members)."""
