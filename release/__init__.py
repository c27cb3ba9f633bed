"""What reviewers use of a study that is shipped: verify, artifact, contribute, seal.

Reads finished studies; needs neither torch nor a GPU.
"""
