"""What commands show: a page of headings, rows, tables and curves, as text, on a terminal, or as one HTML file."""
