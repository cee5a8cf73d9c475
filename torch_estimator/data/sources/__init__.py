"""Sources of rows: one module per kind of source, and modules that the sources of files share."""
