"""The members' processes: the fork server that starts them, and their pipes."""
