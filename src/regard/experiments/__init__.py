"""The paper's comparisons as runs: what stands in its tables, measured on text and machines at hand."""
