"""What the OpenAPI document says of `/v1/classify`: the operation, with each of its three forms of body, and its schemas.

Nothing of it is read when a request is served: whoever changes `protocol/classify.py` changes it here (a test compares it with real
answers).
"""

from __future__ import annotations

from serving import errors
from serving.gateway.http.endpoint import Json, Operation
from serving.gateway.http.openapi import ERRORS, as_json, headers, ref
from serving.protocol.classify import DEFAULT_TOP_K, IMAGE_TYPES

HEADERS = ("Tandem-Pool", "Tandem-Variant", "Tandem-Deadline-Ms", "Tandem-Priority", "Content-Encoding")
TOP_K: Json = {
    "type": "integer",
    "minimum": 1,
    "description": f"How many labels of each image, at most all; {DEFAULT_TOP_K} where nothing is said, or all if there are fewer.",
}
FILE: Json = {"type": "string", "format": "binary"}
BODY: Json = {
    **as_json(ref("ClassifyRequest")),
    "multipart/form-data": {
        "schema": {
            "type": "object",
            "properties": {"image": {"type": "array", "minItems": 1, "items": FILE}, "top_k": TOP_K},
            "required": ["image"],
        }
    },
    **{kind: {"schema": FILE} for kind in IMAGE_TYPES},
}
RESULT: Json = {
    "oneOf": [
        {
            "type": "object",
            "properties": {
                "labels": {
                    "type": "array",
                    "description": "The best first.",
                    "items": {
                        "type": "object",
                        "properties": {
                            "label": {"type": ["string", "null"], "description": "null where classes have no names."},
                            "index": {
                                "type": "integer",
                                "minimum": 0,
                                "description": "Of the class in the model's output.",
                            },
                            "score": {"type": "number", "description": "Its probability, as the model says it."},
                        },
                        "required": ["label", "index", "score"],
                    },
                }
            },
            "required": ["labels"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"error": {"type": "string", "description": "Why this image, and no other, has no labels."}},
            "required": ["error"],
            "additionalProperties": False,
        },
    ]
}
ANSWER: Json = {
    "model": {"type": "string", "description": "The name that was asked for."},
    "results": {"type": "array", "description": "One for each image, in their order.", "items": RESULT},
}
SCHEMAS: Json = {
    "ClassifyRequest": {
        "type": "object",
        "properties": {
            "images": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "string",
                    "description": "A JPEG, PNG or WebP in base64, bare or as a data: URI. No URL.",
                },
            },
            "top_k": TOP_K | {"type": ["integer", "null"]},
        },
        "required": ["images"],
        "additionalProperties": False,
    },
    "ClassifyResponse": {"type": "object", "properties": ANSWER, "required": ["model", "results"]},
    "ClassifyError": {
        "type": "object",
        "properties": {"error": {"type": "string", "description": "What happened and the way out."}, **ANSWER},
        "required": ["error"],
    },
}
CLASSIFY = Operation(
    "classify",
    "classify",
    "Labels of images: files in, the model's own preprocessing and names of classes here.",
    as_json(ref("ClassifyResponse")),
    outcome="Labels of each image, and the receipt in the headers.",
    body=BODY,
    needs_body=True,
    parameters=[{"name": "top_k", "in": "query", "schema": TOP_K}, *headers(HEADERS)],
    has_receipt=True,
    errors=ERRORS
    | {
        errors.BadRequest: "The request is wrong, this model classifies no images, or none of the images is one: then each says why.",
        errors.Unauthenticated: "There is no key, or none that is known.",
        errors.Forbidden: "This key may not ask this model.",
        errors.Internal: "The model failed on this request, or its files are not those of its gate.",
        errors.Unsupported: "This gateway has no model repository, so neither preprocessing nor labels; or an encoding of the body that is "
        "not offered.",
    },
    error_schema="ClassifyError",
)
