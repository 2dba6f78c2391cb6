"""An evaluation as one page: numbers, plots and the record itself, in a file that needs no network."""
