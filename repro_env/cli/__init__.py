"""The command line: one file for each command, with its options, one call of `api`, and the printed result.

`ui` has what the commands share: messages, pages and tables. No command reads files of the store or compares anything itself.
"""
