"""A bench of models from other hands: had from registry packages or made by their frameworks here, exported, served, and compared."""
