"""ONNX graphs, whoever wrote them: read whole, run on inputs that fit, and given names, a batch dimension and a task."""
