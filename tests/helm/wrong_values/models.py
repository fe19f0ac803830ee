"""Contradictions in what is said of the model repository."""

from __future__ import annotations

from tests.helm.conftest import Object


def store(**said: object) -> Object:
    return {"modelRepository": {"source": "objectStore", "objectStore": {"from": "models:bucket/digits", **said}}}


def ignored(value: str, belongs_to: str, source: str = "image") -> str:
    return (
        f"modelRepository.{value} is set, but modelRepository.source is {source}, so it would be ignored. "
        f"Set modelRepository.source={belongs_to}, or leave it out."
    )


def in_plain(name: str) -> str:
    return (
        f"modelRepository.objectStore.env.{name} looks like a secret, and values are plain. Put it into a secret and set "
        "modelRepository.objectStore.existingSecret to its name."
    )


SECRETS = ("SECRET_ACCESS_KEY", "KEY", "SAS_URL", "PASS", "SESSION_TOKEN", "SERVICE_ACCOUNT_CREDENTIALS")

# (values, the whole sentence)
CONTRADICTIONS: dict[str, tuple[Object, str]] = {
    "a claim without a name": (
        {"modelRepository": {"source": "claim"}},
        "modelRepository.source is claim, but no claim is named. Set modelRepository.claimName to a PersistentVolumeClaim "
        "that holds the model repository, or modelRepository.newClaim.create=true.",
    ),
    "two claims": (
        {"modelRepository": {"source": "claim", "claimName": "mine", "newClaim": {"create": True}}},
        "modelRepository.newClaim.create makes a claim, and modelRepository.claimName names mine. Leave one of them out.",
    ),
    "a folder of no claim": (
        {"modelRepository": {"claimSubPath": "models"}},
        ignored("claimSubPath", "claim"),
    ),
    "a claim that is made for nobody": (
        {"modelRepository": {"newClaim": {"create": True}}},
        ignored("newClaim.create", "claim"),
    ),
    "a cache of what nodes keep anyway": (
        {"modelRepository": {"nodeCache": {"path": "/var/lib/tandem"}}},
        "modelRepository.nodeCache.path would do nothing: with source=image the node keeps the image itself, as any other. Leave it out, "
        "or set modelRepository.source=objectStore.",
    ),
    "a cache of a claim": (
        {"modelRepository": {"source": "claim", "claimName": "mine", "nodeCache": {"path": "/var/lib/tandem"}}},
        ignored("nodeCache.path", "objectStore", "claim"),
    ),
    "a bucket without a name": (
        {"modelRepository": {"source": "objectStore", "objectStore": {"existingSecret": "bucket"}}},
        "modelRepository.source is objectStore, but nothing is named to copy. Set modelRepository.objectStore.from to "
        "REMOTE:BUCKET/PATH, as rclone names it.",
    ),
    "an image volume without an image": (
        {"modelRepository": {"source": "imageVolume"}},
        "modelRepository.source is imageVolume, but no image is named. Set modelRepository.imageVolume.reference to an image "
        "whose root is the model repository.",
    ),
    "a claim that would be ignored": (
        {"modelRepository": {"claimName": "models"}},
        ignored("claimName", "claim"),
    ),
    "an image that would be ignored": (
        {
            "modelRepository": {
                "source": "claim",
                "claimName": "models",
                "image": {"repository": "r/models", "tag": "1"},
            }
        },
        ignored("image.repository", "image", "claim"),
    ),
    "a bucket that would be ignored": (
        {"modelRepository": {"objectStore": {"from": "models:bucket"}}},
        ignored("objectStore.from", "objectStore"),
    ),
    "a bucket's secret that would be ignored": (
        {"modelRepository": {"objectStore": {"existingSecret": "bucket"}}},
        ignored("objectStore.existingSecret", "objectStore"),
    ),
    "a bucket's variables that would be ignored": (
        {"modelRepository": {"objectStore": {"env": {"RCLONE_CONFIG_MODELS_TYPE": "s3"}}}},
        ignored("objectStore.env", "objectStore"),
    ),
    "an image volume that would be ignored": (
        {
            "modelRepository": {
                **store(existingSecret="bucket")["modelRepository"],
                "imageVolume": {"reference": "r/models:1"},
            }
        },
        ignored("imageVolume.reference", "imageVolume", "objectStore"),
    ),
    "a version of no image": (
        {"modelRepository": {"image": {"tag": "1.2"}}},
        "modelRepository.image has a tag or digest, but no repository, so the gateway's image would be taken. Set "
        "modelRepository.image.repository, or leave them out.",
    ),
    "a remote that nobody knows": (
        store(),
        "modelRepository.objectStore.from names the remote models, but nothing says what it is. Put RCLONE_CONFIG_MODELS_TYPE and "
        "the rest into a secret and set modelRepository.objectStore.existingSecret to its name, or set it in "
        "modelRepository.objectStore.env.",
    ),
    "another remote's variables": (
        store(env={"RCLONE_CONFIG_OTHER_TYPE": "s3"}),
        "modelRepository.objectStore.from names the remote models, but nothing says what it is. Put RCLONE_CONFIG_MODELS_TYPE and "
        "the rest into a secret and set modelRepository.objectStore.existingSecret to its name, or set it in "
        "modelRepository.objectStore.env.",
    ),
    **{
        f"a secret in plain: {name}": (
            store(existingSecret="bucket", env={f"RCLONE_CONFIG_MODELS_{name}": "hidden"}),
            in_plain(f"RCLONE_CONFIG_MODELS_{name}"),
        )
        for name in SECRETS
    },
}
