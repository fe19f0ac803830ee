"""`tandem compare`: two reports side by side."""
