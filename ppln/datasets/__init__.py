"""Data to learn from: recorded sets and synthetic ones."""
