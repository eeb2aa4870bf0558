#!/usr/bin/env bash
# A Docker engine and base images for `make compose-test`, on a Debian host where they are missing. Needs root.
#
#   engine.sh up            starts an engine when none answers; installs Debian's packages where they are missing
#   engine.sh base          makes sure of BASE_IMAGE: pulled, or made with debootstrap where no registry serves it
#   engine.sh prometheus    makes sure of PROMETHEUS_IMAGE: pulled, or made from Debian's package over BASE_IMAGE
#   engine.sh grafana       makes sure of GRAFANA_IMAGE: pulled, or code 3
#   engine.sh down          stops the engine that `up` started
#
# State lies in ENGINE_STATE. An engine that was running is used and never stopped.
set -euo pipefail

state=${ENGINE_STATE:-/var/tmp/splitwire-engine}
base_image=${BASE_IMAGE:-python:3.11-slim-bookworm}
prometheus_image=${PROMETHEUS_IMAGE:-prom/prometheus:v2.55.1}
grafana_image=${GRAFANA_IMAGE:-grafana/grafana:11.3.0}
pull_seconds=${PULL_SECONDS:-300}

fail() {
  echo "engine: $1" >&2
  exit "${2:-2}"
}

as_root() {
  [ "$(id -u)" -eq 0 ] || fail "this needs root. Run it as root, or start an engine and pull the images yourself"
}

install_packages() {
  apt-get update -qq || fail "apt-get update failed. Check the package sources, or install: $*"
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >"$state/install.log" 2>&1 ||
    fail "$* cannot be installed; see $state/install.log"
}

has_image() {
  docker image inspect "$1" >/dev/null 2>&1
}

pull() {
  timeout "$pull_seconds" docker pull --quiet "$1" >/dev/null 2>&1
}

up() {
  docker info >/dev/null 2>&1 && return
  as_root
  command -v dockerd >/dev/null && command -v iptables >/dev/null || install_packages docker.io iptables
  command -v docker-compose >/dev/null || docker compose version >/dev/null 2>&1 || install_packages docker-compose
  nohup dockerd --data-root "$state/data" --exec-root "$state/exec" --pidfile "$state/dockerd.pid" \
    >"$state/dockerd.log" 2>&1 </dev/null &
  for _ in $(seq 60); do
    docker info >/dev/null 2>&1 && return
    sleep 1
  done
  fail "the engine does not answer; see $state/dockerd.log"
}

base() {
  has_image "$base_image" || pull "$base_image" || bootstrap
}

bootstrap() {
  as_root
  command -v debootstrap >/dev/null || install_packages debootstrap
  local root=$state/rootfs
  rm -rf "$root"
  debootstrap --variant=minbase --include=python3,python3-venv,python3-pip,ca-certificates bookworm "$root" \
    "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$state/debootstrap.log" 2>&1 ||
    fail "debootstrap failed; see $state/debootstrap.log"
  cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
  ln -sf python3 "$root/usr/bin/python"
  rm -f "$root"/usr/lib/python3*/EXTERNALLY-MANAGED
  tar -C "$root" -c . | docker import - "$base_image" >/dev/null
  rm -rf "$root"
}

prometheus() {
  has_image "$prometheus_image" || pull "$prometheus_image" || stand_in
}

stand_in() {
  base
  docker build --quiet --network host --tag "$prometheus_image" - >/dev/null <<EOF
FROM $base_image
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends prometheus && rm -rf /var/lib/apt/lists/*
USER nobody
ENTRYPOINT ["prometheus"]
EOF
}

grafana() {
  has_image "$grafana_image" || pull "$grafana_image" || fail "no registry serves $grafana_image" 3
}

down() {
  [ -f "$state/dockerd.pid" ] || return 0
  kill "$(cat "$state/dockerd.pid")" 2>/dev/null || true
}

mkdir -p "$state"
case "${1:-}" in
  up | base | prometheus | grafana | down) "$1" ;;
  *) fail "usage: $0 up | base | prometheus | grafana | down" ;;
esac
