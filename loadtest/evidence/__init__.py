"""What servers and machine count during a run, and how it is told beside the latencies."""
