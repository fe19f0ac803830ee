"""Contradictions in what is said of the model repository."""

from __future__ import annotations

from tests.helm.conftest import Names, Object


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

# (values, what the sentence names)
CONTRADICTIONS: dict[str, tuple[Object, Names]] = {
    "a claim without a name": (
        {"modelRepository": {"source": "claim"}},
        (
            "modelRepository.source",
            "modelRepository.claimName",
            "PersistentVolumeClaim",
            "modelRepository.newClaim.create=true",
        ),
    ),
    "two claims": (
        {"modelRepository": {"source": "claim", "claimName": "mine", "newClaim": {"create": True}}},
        ("modelRepository.newClaim.create", "modelRepository.claimName"),
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
        ("modelRepository.nodeCache.path", "source=image", "modelRepository.source=objectStore"),
    ),
    "a cache of a claim": (
        {"modelRepository": {"source": "claim", "claimName": "mine", "nodeCache": {"path": "/var/lib/tandem"}}},
        ignored("nodeCache.path", "objectStore", "claim"),
    ),
    "a bucket without a name": (
        {"modelRepository": {"source": "objectStore", "objectStore": {"existingSecret": "bucket"}}},
        ("modelRepository.source", "objectStore", "modelRepository.objectStore.from", "REMOTE:BUCKET/PATH"),
    ),
    "an image volume without an image": (
        {"modelRepository": {"source": "imageVolume"}},
        ("modelRepository.source", "imageVolume", "modelRepository.imageVolume.reference"),
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
    "a bucket's following that would be ignored": (
        {"modelRepository": {"objectStore": {"follow": True}}},
        ignored("objectStore.follow", "objectStore"),
    ),
    "a bucket that NVIDIA's server is to follow": (
        store(existingSecret="bucket", follow=True),
        ("modelRepository.objectStore.follow", "pools.cpu.server"),
    ),
    "a bucket that is followed into a node's cache": (
        {
            "modelRepository": {
                **store(existingSecret="bucket", follow=True)["modelRepository"],
                "nodeCache": {"path": "/var/lib/tandem"},
            },
            "pools": {"cpu": {"server": "tandem"}},
        },
        ("modelRepository.objectStore.follow", "modelRepository.nodeCache.path"),
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
        ("modelRepository.image", "modelRepository.image.repository"),
    ),
    "a remote that nobody knows": (
        store(),
        (
            "modelRepository.objectStore.from",
            "RCLONE_CONFIG_MODELS_TYPE",
            "modelRepository.objectStore.existingSecret",
            "modelRepository.objectStore.env",
        ),
    ),
    "another remote's variables": (
        store(env={"RCLONE_CONFIG_OTHER_TYPE": "s3"}),
        (
            "modelRepository.objectStore.from",
            "RCLONE_CONFIG_MODELS_TYPE",
            "modelRepository.objectStore.existingSecret",
            "modelRepository.objectStore.env",
        ),
    ),
    **{
        f"a secret in plain: {name}": (
            store(existingSecret="bucket", env={f"RCLONE_CONFIG_MODELS_{name}": "hidden"}),
            in_plain(f"RCLONE_CONFIG_MODELS_{name}"),
        )
        for name in SECRETS
    },
}
