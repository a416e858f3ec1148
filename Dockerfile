# syntax=docker/dockerfile:1
# docker buildx build --platform linux/amd64,linux/arm64 -t registry.example/crossfade:0.1.0 .
# No shell and no package manager in the result; it runs as a user without rights, on a root file system it need not write.
FROM rust:1-bookworm AS build
# Set by buildx. Platforms that are built at once must not share a target directory.
ARG TARGETARCH
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY src src
COPY benches benches
COPY examples examples
COPY proto proto
COPY deploy/base/rbac.yaml deploy/base/rbac.yaml
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target,id=target-$TARGETARCH \
    cargo build --locked --release --bin crossfade && strip --strip-debug -o /crossfade target/release/crossfade

FROM gcr.io/distroless/cc-debian12:nonroot
COPY LICENSE /LICENSE
COPY --from=build /crossfade /crossfade
USER 65532:65532
EXPOSE 8000 9464
ENTRYPOINT ["/crossfade"]
