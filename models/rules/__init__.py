"""Pure rules: time, ids and settings come in as arguments, and nothing here does I/O."""
