"""What mkdocs does not do by itself for `make docs`: pages that lie outside docs/, and links to files that are no pages.

A link in docs/ is written so that it works where the file lies, in a checkout or on a forge. Here it becomes a link to a page of the site
where there is one, and the name of the file where there is none. A link to what does not exist is left as it is, so that the build fails.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {  # page of the site -> where it lies
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security-policy.md": "SECURITY.md",
    "chart.md": "helm/tandem/README.md",
    "examples.md": "examples/README.md",
    "k8s.md": "k8s/README.md",
    "k8s-gpu-nodes.md": "k8s/gpu-nodes/README.md",
    "k8s-gpu-sharing.md": "k8s/gpu-sharing/README.md",
    "k8s-scaling.md": "k8s/scaling/README.md",
    "k8s-spare-capacity.md": "k8s/spare-capacity/README.md",
    "on-a-card.md": "loadtest/gpu/README.md",
    "published-results.md": "published-results/README.md",
}
PAGES = {source: page for page, source in OUTSIDE.items()}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    for page, source in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    name = page.file.src_uri
    folder = (ROOT / OUTSIDE.get(name, f"docs/{name}")).parent
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [LINK.sub(lambda found: _link(found, folder, Path(name).parent), text) for text in parts[::2]]
    return "".join(parts)


def _link(found: re.Match[str], folder: Path, here: Path) -> str:
    """`folder`: where the file lies; `here`: the folder of its page in the site."""
    bang, text, target = found.groups()
    path, mark, anchor = target.partition("#")
    if "://" in target or not path:
        return found[0]
    source = os.path.relpath(folder / path, ROOT)
    page = PAGES.get(source) or PAGES.get(f"{source}/README.md")
    if page is None and source.startswith("docs/"):
        page = source.removeprefix("docs/")
    if page is not None:
        return f"{bang}[{text}]({os.path.relpath(page, here)}{mark}{anchor})"
    return f"{text} (`{source}`)" if (ROOT / source).exists() else found[0]
