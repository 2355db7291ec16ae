"""The laboratory: variants x corpora x budgets x seeds, each cell a normal run (docs/design/laboratory.md)."""
