#!/usr/bin/env bash
# The manifest of the plugin `kubectl crossfade` for Krew, for the archives of a release in a directory. It has the platforms that
# a release has archives for, which is Linux: the program also compiles for macOS (make macos), but no release is tested there.
#
# usage: krew.sh TAG REPOSITORY DIRECTORY   (REPOSITORY is OWNER/NAME on GitHub)
set -euo pipefail
tag=$1 repository=$2 directory=$3

cat <<END
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: crossfade
spec:
  version: $tag
  homepage: https://github.com/$repository
  shortDescription: Move LLM traffic to a new generation of frontends
  description: |
    Shows the updates of crossfade and their proxies, and overrides the controller: status, set, pause, resume, drain-old.
    Adds the sidecar to manifests (inject) and takes it out again (uninject).
    Updates are resources of kind DynamoUpdateConfig.
  caveats: |
    For Linux only. On macOS, build it from source: make install.
    The cluster needs the resource definition and the controller:
    https://github.com/$repository/blob/$tag/docs/install.md
  platforms:
END
for pair in amd64=x86_64 arm64=aarch64; do
  archive=crossfade-$tag-linux-${pair#*=}.tar.gz
  read -r sum _ <"$directory/$archive.sha256"
  cat <<END
  - selector:
      matchLabels: {os: linux, arch: ${pair%=*}}
    uri: https://github.com/$repository/releases/download/$tag/$archive
    sha256: $sum
    bin: crossfade
    files:
    - {from: "*/bin/crossfade", to: .}
    - {from: "*/LICENSE", to: .}
    - {from: "*/THIRD-PARTY.txt", to: .}
END
done
