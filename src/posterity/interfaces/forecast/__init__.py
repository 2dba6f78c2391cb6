"""Forecasts of series in a table: windows on a regular grid, intervals in units, coverage by horizon."""
