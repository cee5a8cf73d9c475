"""What a Dataset does to rows: a file per operation, with its settings and the stream that carries it out."""
