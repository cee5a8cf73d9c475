"""The trainer of the census example: task (command line), model, featurizer and input."""
