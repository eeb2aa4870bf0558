#!/bin/sh
# Where the untrusted node's metrics are comes from the environment, which Prometheus itself does not read.
set -eu
umask 022
printf '[{"targets": ["%s"]}]\n' "${UCN_METRICS_ADDRESS:?set UCN_METRICS_ADDRESS to host:port}" >/tmp/ucn.json
if ! touch /data/.writable 2>/dev/null; then
  echo "prometheus: error: PROMETHEUS_DATA cannot be written. Free space there, or give the folder to user $(id -u)" >&2
  exit 5
fi
exec prometheus --config.file=/etc/prometheus/prometheus.yml --storage.tsdb.path=/data \
  --storage.tsdb.retention.time=30d --web.listen-address=0.0.0.0:9090
