"""What the cluster remembers: who is alive, which weights are which, and where Redis is."""
