"""/v1/classify: files of images in, labels out; decoding on threads, and inference as of every other protocol."""
