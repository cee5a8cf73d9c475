"""Batch prediction: an export run on files of rows, by several processes, resumable after a kill.

In the order in which data flows: ``inputs.py`` finds the files, divides them into chunks and reads these, ``shard.py``
predicts the rows of a chunk, ``json_lines.py`` writes predictions as JSON, and ``job.py`` divides the chunks among
processes, goes on after a kill, and finishes the output.
"""
