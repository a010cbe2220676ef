"""What people see: messages on stderr, results on stdout, pages and tables, and the options that several commands have."""
