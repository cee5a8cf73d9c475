"""Tuning: studies of several trainings, called trials, that search for good values of the program's parameters.

`space` has the parameters and their values. `study` is what was asked for, and `configuration` reads it from the YAML
of gcloud and of Vertex AI. `samplers` propose values for the next trial. `asha` decides which paused trial goes on.

`directory` is a study on disk. `controller` runs it: `starters` start the process of a trial, `trial` is what happens
there, and `metrics` reads what it has reached. `tune` does all of that from Python.
"""
