"""What people read of a study: pages, figures, the explorer, comparisons, exports."""
