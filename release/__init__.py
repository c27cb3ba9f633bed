"""What reviewers use of a study: verify, seal, artifact, contribute. Measures nothing."""
