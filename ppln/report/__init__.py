"""What a person looks at: summaries and pictures."""
