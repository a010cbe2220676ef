"""The machine at capture: CPU, GPUs, drivers, numeric libraries, variables and configuration files. Observations, not identity."""
