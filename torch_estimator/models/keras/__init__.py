"""Estimators from compiled Keras 3 models on the torch backend. Keras is imported only when a model is given."""
