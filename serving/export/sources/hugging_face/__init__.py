"""`hf:`: folders of transformers and sentence-transformers, with the tokenizer or the image preprocessing kept as data."""
