"""Child processes: start them, hear of their end, start them again, and leave none behind.

- `child` starts a command in a group of its own. On Linux it dies with this process; its own children may not.
- `forked` forks this process, for work that needs its memory.
- `die_with_parent` makes the kernel kill a process when its parent dies, for both of them.
- `restarts` says when a child that failed is started again, and how often.
- `events` is the queue through which a supervisor hears of signals and exits.

The launcher, the server's parent, replicas on one machine and the compiler of steps use this room. It imports the
standard library only, because the server's parent stays in memory without anything else.
"""
