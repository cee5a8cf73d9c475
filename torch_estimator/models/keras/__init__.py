"""Keras 3 models on the torch backend as Estimators; nothing here is imported before a Keras model is there."""
