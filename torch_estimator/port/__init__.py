"""Ports programs from tf.estimator: rewrites what has a counterpart here, and lists the rest with advice."""
