"""What happens when things die, run cold or have too much to do, on real processes (`make prove`)."""
