"""Sweeps: many runs of users' commands, some at a time on each GPU, each until it has ended well.

A sweep is a folder with its commands (journal.py). One supervisor for each GPU (supervisor.py)
claims runs there, and starts each below a keeper (keeper.py) that ends it with all its processes.
Supervisors of one machine or of several that share the folder work off the same queue.
"""
