"""Which variants on which pools, how many servers, at what price: a plan from profiles, prices and an objective. Pure."""
