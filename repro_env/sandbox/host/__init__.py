"""The runner in the live environment, without isolation: in the project itself, or in a private copy."""
