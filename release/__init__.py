"""What reviewers use of a study: verify, seal, artifact, merge. Measures nothing."""
