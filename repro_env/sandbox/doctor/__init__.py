"""What this machine lets a run do: try it, and say what it means."""
