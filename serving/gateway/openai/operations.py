"""What the OpenAPI document says of OpenAI's endpoints: operations and their schemas.

Nothing of it is read when a request is served: whoever changes `protocol/openai.py` changes it here (a test compares it with real answers).
"""

from __future__ import annotations

from serving import errors
from serving.gateway.http.endpoint import Json, Operation
from serving.gateway.http.openapi import ERRORS, as_json, headers, ref

HEADERS = ("Tandem-Pool", "Tandem-Variant", "Tandem-Deadline-Ms", "Tandem-Priority", "Content-Encoding")
TOKENS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
TEXT = {"type": "string", "minLength": 1}
INPUT = {
    "description": "A text, some texts, a text's tokens, or the tokens of some texts: ids of this model's own tokenizer, with its special "
    "tokens or without. Tokens only where the gateway was told to take them for this model.",
    "oneOf": [
        TEXT,
        {"type": "array", "minItems": 1, "items": TEXT},
        TOKENS,
        {"type": "array", "minItems": 1, "items": TOKENS},
    ],
}
SCHEMAS: Json = {
    "OpenAIError": {
        "type": "object",
        "properties": {
            "error": {
                "type": "object",
                "properties": {
                    "message": {"type": "string", "description": "What happened and the way out."},
                    "type": {"type": "string", "examples": ["invalid_request_error"]},
                    "param": {"type": ["string", "null"], "description": "The field that is wrong."},
                    "code": {"type": ["string", "null"], "examples": ["model_not_found"]},
                },
                "required": ["message", "type", "param", "code"],
            }
        },
        "required": ["error"],
    },
    "EmbeddingsRequest": {
        "type": "object",
        "properties": {
            "model": {"type": "string", "minLength": 1},
            "input": INPUT,
            "encoding_format": {
                "enum": ["float", "base64", None],
                "default": "float",
                "description": "base64: of little-endian float32.",
            },
            "dimensions": {
                "type": ["integer", "null"],
                "minimum": 1,
                "description": "The first so many numbers of each vector, of length 1 again. Only models that were trained for it keep "
                "their quality (Matryoshka).",
            },
            "user": {"type": ["string", "null"], "description": "Does nothing."},
            "truncate": {
                "type": ["boolean", "null"],
                "default": False,
                "description": "Tandem's own: cut texts that are longer than the model takes. Without it they are refused.",
            },
        },
        "required": ["model", "input"],
        "additionalProperties": False,
    },
    "EmbeddingsResponse": {
        "type": "object",
        "properties": {
            "object": {"const": "list"},
            "data": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        "object": {"const": "embedding"},
                        "index": {"type": "integer", "minimum": 0},
                        "embedding": {"oneOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string"}]},
                    },
                    "required": ["object", "index", "embedding"],
                },
            },
            "model": {"type": "string", "description": "The name that was asked for."},
            "usage": {
                "type": "object",
                "description": "Tokens that the model saw, its special tokens among them, padding not.",
                "properties": {"prompt_tokens": {"type": "integer"}, "total_tokens": {"type": "integer"}},
                "required": ["prompt_tokens", "total_tokens"],
            },
        },
        "required": ["object", "data", "model", "usage"],
    },
}

EMBEDDINGS = Operation(
    "openai",
    "embeddings",
    "Vectors of texts, as OpenAI's clients ask for them.",
    as_json(ref("EmbeddingsResponse")),
    outcome="Vectors in the order of the texts, and the receipt in the headers.",
    body=as_json(ref("EmbeddingsRequest")),
    needs_body=True,
    parameters=headers(HEADERS),
    has_receipt=True,
    errors=ERRORS
    | {
        errors.BadRequest: "The request is wrong, or this model makes no vectors of texts; `param` names the field.",
        errors.Unauthenticated: "There is no key, or none that is known.",
        errors.Forbidden: "This key may not ask this model.",
        errors.Unsupported: "This gateway has no model repository, so no tokenizer; or an encoding of the body that is not offered.",
    },
    error_schema="OpenAIError",
)
_ANY: Json = {"type": "object", "additionalProperties": True}
MODELS = Operation(
    "openai",
    "models",
    "The models that can be asked for, as OpenAI's clients list them.",
    as_json(_ANY),
    error_schema="OpenAIError",
)
MODEL = Operation(
    "openai", "retrieve_model", "One of them; also the name of a variant.", as_json(_ANY), error_schema="OpenAIError"
)
