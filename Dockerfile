# The service as a small image that runs as nobody in particular.
FROM rust:1.95-slim-bookworm AS build
WORKDIR /build
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends build-essential && rm -rf /var/lib/apt/lists/*
COPY Cargo.toml Cargo.lock ./
COPY migrations migrations
COPY src src
# Not built, but cargo looks for what the manifest names.
COPY tests/fake_acp_agent tests/fake_acp_agent
COPY tests/fake_model tests/fake_model
COPY benches benches
RUN cargo build --release --locked --bin ostler

FROM debian:bookworm-slim
# The home is empty: Docker copies what is in it into a new volume, and containers that do so at once get in each other's way.
RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends ca-certificates tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/ostler ostler \
 && install -d -o ostler -g ostler -m 0700 /var/lib/ostler
COPY --from=build /build/target/release/ostler /usr/local/bin/ostler
USER 10001:10001
WORKDIR /var/lib/ostler
# Settings, not flags: the environment of a container can say otherwise.
ENV OSTLER_DATA_DIR=/var/lib/ostler/data OSTLER_LISTEN=0.0.0.0:7070 OSTLER_PUBLIC_HOST=localhost
VOLUME /var/lib/ostler
EXPOSE 7070
# tini reaps what an agent leaves behind.
ENTRYPOINT ["tini", "--", "ostler"]
CMD ["serve"]
