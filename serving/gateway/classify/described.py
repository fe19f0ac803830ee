"""/v1/classify in the OpenAPI document: what it takes, in each of its three forms, and what it answers.

Nothing in it is read when a request is served: whoever changes `protocol/classify.py` changes it here (a test compares them with real
answers).
"""

from __future__ import annotations

from typing import Any

from serving import errors
from serving.protocol.classify import DEFAULT_TOP_K, IMAGE_TYPES

Json = dict[str, Any]
PATH = "/v1/classify/{model}"
HEADERS = ("Tandem-Pool", "Tandem-Variant", "Tandem-Deadline-Ms", "Tandem-Priority", "Content-Encoding")
ERRORS: dict[type[errors.RequestError], str] = {
    errors.BadRequest: "The request is wrong, this model classifies no images, or none of the images is one: then each says why.",
    errors.Unauthenticated: "There is no key, or none that is known.",
    errors.Forbidden: "This key may not ask this model.",
    errors.NotFound: "There is no such model.",
    errors.TooLarge: "The body is larger than is taken here.",
    errors.Internal: "The model failed on this request, or its files are not those of its gate.",
    errors.Unsupported: "This gateway has no model repository, so neither preprocessing nor labels; or an encoding of the body that is not "
    "offered.",
    errors.NotReady: "The model is away, there is too much to do to answer in time, or the server that worked on this was lost: "
    "try again after Retry-After; without one, trying again does not help.",
    errors.DeadlineExpired: "The deadline passed before there was an answer.",
}
TOP_K: Json = {
    "type": "integer",
    "minimum": 1,
    "description": f"How many labels of each image, at most all; {DEFAULT_TOP_K} where nothing is said, or all if there are fewer.",
}
FILE: Json = {"type": "string", "format": "binary"}
BODY: Json = {
    "application/json": {"schema": {"$ref": "#/components/schemas/ClassifyRequest"}},
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
PARAMETERS: list[Json] = [
    {"name": "top_k", "in": "query", "schema": TOP_K},
]
