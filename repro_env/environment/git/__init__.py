"""Git repositories of users: facts, history and differences. Only `command` starts git, and no program of a repository runs."""
