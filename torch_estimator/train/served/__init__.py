"""Training a model whose parameters are with parameter servers."""
