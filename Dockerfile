# To build the image for both architectures:
#   docker buildx build --platform linux/amd64,linux/arm64 -t registry.example/crossfade:0.1.0 .
# The image contains no shell and no package manager. The program runs as an unprivileged user, and does not write to the root file system.
# Renovate updates the digests of the base images.
FROM rust:1.95.0-bookworm@sha256:6258907abe69656e41cd992e0b705cdcfabcbbe3db374f92ed2d47121282d4a1 AS build
RUN cargo install --locked cargo-auditable@0.7.7 && cargo install --locked --features cli cargo-about@0.9.3
# Set by BuildKit. Builds for several platforms run at the same time, so each needs its own target directory.
ARG TARGETARCH
# The image that `crossfade inject` adds by default, such as the name and tag of this image. Without it, users must set --image.
ARG CROSSFADE_DEFAULT_IMAGE
WORKDIR /src
COPY Cargo.toml Cargo.lock about.toml about.hbs ./
COPY src src
COPY benches benches
COPY examples examples
COPY proto proto
COPY deploy/base/rbac.yaml deploy/base/rbac.yaml
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target,id=target-$TARGETARCH \
    cargo auditable build --locked --release --bin crossfade && \
    cargo about generate --locked about.hbs --output-file /THIRD-PARTY.txt && \
    objcopy --only-keep-debug target/release/crossfade /crossfade.debug && \
    objcopy --strip-debug --add-gnu-debuglink=/crossfade.debug target/release/crossfade /crossfade

# The debug information of the same build. To write it to the current directory:
#   docker build --target debug --output . .
FROM scratch AS debug
COPY --from=build /crossfade.debug /

FROM gcr.io/distroless/cc-debian12:nonroot@sha256:9dac0a79194e45a7da0158a9c6da57b217585af0786db3845d1f0ec1a0dd182f
COPY LICENSE /LICENSE
COPY --from=build /THIRD-PARTY.txt /THIRD-PARTY.txt
COPY --from=build /crossfade /crossfade
USER 65532:65532
EXPOSE 8000 9464
ENTRYPOINT ["/crossfade"]
