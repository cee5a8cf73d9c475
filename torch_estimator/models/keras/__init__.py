"""Compiled Keras 3 models (torch backend) as Estimators; keras is imported only when a model is given."""
