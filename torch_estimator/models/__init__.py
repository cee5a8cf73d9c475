"""Premade models (linear, deep, wide and deep, baselines), and Estimators from a torch module or a Keras model.

Every premade model is an Estimator with a prepared ``model_fn``.
"""
