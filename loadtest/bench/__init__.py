"""Numbers about Tandem itself: what the gateway costs (`make bench`), and how it behaves when something dies (`make prove`)."""
