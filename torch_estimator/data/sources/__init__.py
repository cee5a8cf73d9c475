"""Where rows come from: a file per kind of source, and what sources of files share."""
