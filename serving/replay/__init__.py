"""`tandem simulate`: reads a scenario and a trace, has them simulated, shows the outcome. What is decided is decided below this room."""
