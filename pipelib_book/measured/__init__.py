"""What the records of `benchmarks/` hold, in words, tables and figures, for the book."""
