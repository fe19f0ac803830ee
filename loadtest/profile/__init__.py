"""What does a model cost where, and how much does a server carry in time? `tandem profile` measures it; plans read what it writes."""
