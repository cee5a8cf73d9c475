"""A tabular network from the literature, a plain `nn.Module`, brought in one line."""
