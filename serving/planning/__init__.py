"""What to run where, and why: pure functions of measurements. No I/O and no clock in this room."""
