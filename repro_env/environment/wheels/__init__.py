"""Identify installed distributions as wheels: find candidates, prove one, or make a wheel of the installed files."""
