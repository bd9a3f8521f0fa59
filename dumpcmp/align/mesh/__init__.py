"""Values of partitioned runs: layouts, and shards put back together."""
