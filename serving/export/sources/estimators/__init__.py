"""`sklearn:`: pickles of fitted scikit-learn and LightGBM estimators, as graphs for CPUs."""
