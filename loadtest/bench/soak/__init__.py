"""What Tandem loses and what it gathers while it serves for long and things die under it (`make soak`)."""
