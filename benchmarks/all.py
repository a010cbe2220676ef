"""Every benchmark in one run: prints the table of benchmarks/README.md and writes it, dated, to benchmarks/results/."""

from __future__ import annotations

import capture
import execute
import parts
import rebuild

if __name__ == "__main__":
    options = parts.arguments(__doc__)
    torch = not options.no_torch
    rows = [
        *capture.main(options.count, torch=torch),
        *rebuild.main(min(options.count, 3), torch=torch),
        *execute.main(options.count),
    ]
    parts.report(rows)
    print("written to", parts.write(rows).relative_to(parts.ROOT))
