#!/usr/bin/env python3
"""Makes a container image from files, without a container engine.

    image.py OUT.tar NAME:TAG[,NAME:TAG...] PROGRAM[=/where] [FILE=/where ...]

PROGRAM is what a container of the image runs; libraries that it is linked with come along. The image holds nothing else but
/tmp: no shell, and the user is 65532. OUT.tar is a docker archive: `cluster.sh image OUT.tar`.
"""

import hashlib
import io
import json
import platform
import re
import subprocess
import sys
import tarfile
from pathlib import Path

NOBODY = "65532:65532"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def libraries(program: str) -> dict[str, str]:
    """What the dynamic linker would load, and itself, each where it looks for it."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return {path: path for path in re.findall(r"(/\S+) \(0x", said)}


def layer(files: dict[str, str]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for where, source in files.items():
            info = tarfile.TarInfo(where.lstrip("/"))
            content = Path(source).read_bytes()
            info.size, info.mode = len(content), 0o755
            tar.addfile(info, io.BytesIO(content))
        tmp = tarfile.TarInfo("tmp")
        tmp.type, tmp.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(tmp)
    return data.getvalue()


def main() -> None:
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    out, name, *pairs = sys.argv[1:]
    program, _, where = pairs[0].partition("=")
    where = where or "/" + Path(program).name
    files = {where: program, **libraries(program)}
    for pair in pairs[1:]:
        source, _, dest = pair.partition("=")
        files[dest] = source
    content = layer(files)
    digest = hashlib.sha256(content).hexdigest()
    config = json.dumps(
        {
            "architecture": ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": {"Entrypoint": [where], "User": NOBODY},
            "rootfs": {"type": "layers", "diff_ids": ["sha256:" + digest]},
        }
    ).encode()
    config_name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = [{"Config": config_name, "RepoTags": name.split(","), "Layers": ["layer.tar"]}]
    members = {config_name: config, "layer.tar": content, "manifest.json": json.dumps(manifest).encode()}
    with tarfile.open(out, "w") as tar:
        for member, data in members.items():
            info = tarfile.TarInfo(member)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


if __name__ == "__main__":
    main()
