"""Jobs: programs that were submitted to run somewhere, and the directories that say what became of them.

`directory` is the format of a job's directory. `request` turns a command line and a configuration into a `JobSpec`,
`targets` submits it, and `launcher` is the process that runs it there.
"""
