"""The product's own timing, under the name that the GPU commands know. Knows no kernel of the product."""

from strata.bench.device_timing import BLOCKS, REPEATS, device_rates_gb_per_s, host_rates_gb_per_s, seconds

__all__ = ["BLOCKS", "REPEATS", "device_rates_gb_per_s", "host_rates_gb_per_s", "seconds"]
