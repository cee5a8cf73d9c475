"""Operations of a Dataset: one file per operation, with its settings and the stream that performs it."""
