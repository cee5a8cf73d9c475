"""Console: pages that show jobs, their roles over time, their logs and curves, from files alone.

- `sources` names the jobs and runs in the directories that were given, and finds their folders.
- `rows` reads what a list shows of one of them, from small files and the ends of files; `index` keeps these rows.
- `curves` keeps what was read of event files within a bound of memory, and reduces it to what a screen can show.
- `lanes` turns what the roles noted and the job's events into lanes; `log_window` reads parts of logs.
- `app` puts the views together. A view is a module with a function ``routes(context)``, listed in ``app._Views``.
- `texts` makes harmless what programs wrote: their output, names and arguments are not trusted.
"""
