"""Whether something got worse between two reports: `tandem compare`."""
