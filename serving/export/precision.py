"""The old place of `variants`."""

from serving.export.variants.cleaning import MAX_IR_VERSION, cleaned
from serving.export.variants.fp16 import to_fp16
from serving.export.variants.int8 import to_int8

__all__ = ["MAX_IR_VERSION", "cleaned", "to_fp16", "to_int8"]
