"""The trainer of the census example: task (command line), model, featurizer, input, and what they need."""
