"""How an FP32 ONNX file becomes FP16, BF16 or INT8: candidates one after another, the most promising first.

Inputs and outputs stay FP32, so that clients never see the precision. Whether a candidate is any good, and whether it pays, is
for `gates` and `speed`; the pipeline asks for the next one when it is not. Rule: what leaves here loads in old servers:
opset as it came, IR version at most 10, one file, and no traces of the machine that made it.
"""
