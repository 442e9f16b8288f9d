"""The shared vocabulary: what a write is, what it may do and where it is kept."""
