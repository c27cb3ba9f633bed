"""Measurements of this project's own speed."""
