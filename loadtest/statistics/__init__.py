"""What may be said of so many samples: percentiles, differences, stability, and which runs do not count. Pure."""
